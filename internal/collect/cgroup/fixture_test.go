package cgroup_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMain makes the test binary the load in a group: for each input line it uses that much
// CPU time and prints a line; "N MB" touches memory, and "write N FILE" writes bytes to a
// file on a disk; "fork N" runs N processes, one after another.
func TestMain(m *testing.M) {
	if os.Getenv("METE_TEST_LOAD") == "" {
		if mount := os.Getenv(unifiedEnv); mount != "" {
			mounts = []string{mount}
			if err := hideV1(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	var held [][]byte
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("done") {
		if n, ok := strings.CutSuffix(in.Text(), " MB"); ok {
			size, _ := strconv.Atoi(n)
			b := make([]byte, size<<20)
			for i := range b {
				b[i] = 1
			}
			held = append(held, b)
			continue
		}
		var size, forks int
		var file string
		if n, _ := fmt.Sscanf(in.Text(), "fork %d", &forks); n == 1 {
			for range forks {
				if err := exec.Command("/proc/self/exe").Run(); err != nil { // its input is empty
					panic(err)
				}
			}
			continue
		}
		if n, _ := fmt.Sscanf(in.Text(), "write %d %s", &size, &file); n == 2 {
			if err := writeDirect(file, size); err != nil {
				panic(err)
			}
			continue
		}
		d, _ := time.ParseDuration(in.Text())
		for end := spent() + d; spent() < end; {
		}
	}
	_ = held
}

// spent returns the CPU time of this process.
func spent() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A load is a process in groups of its own.
type load struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   *os.File
	out  *bufio.Reader
	dirs []string // its groups
}

// newLoad starts a process in the groups with the given directories.
func newLoad(t *testing.T, dirs ...string) *load {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, in: w, cmd: exec.Command("/proc/self/exe"), dirs: dirs}
	l.cmd.Env = append(os.Environ(), "METE_TEST_LOAD=1")
	l.cmd.Stdin = r
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(l.end)
	l.enter(dirs...)
	return l
}

// do sends the process one line of work and waits until it is done.
func (l *load) do(work string) {
	l.t.Helper()
	if _, err := fmt.Fprintln(l.in, work); err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.out.ReadString('\n'); err != nil {
		l.t.Fatal(err)
	}
}

// stop stops the process, and returns once each of its threads has stopped.
func (l *load) stop() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	testkit.Eventually(l.t, "a load is stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", l.cmd.Process.Pid))
		if err != nil {
			l.t.Fatal(err)
		}
		return len(tasks) > 0 && !slices.ContainsFunc(tasks, func(file string) bool {
			b, err := os.ReadFile(file)
			return err != nil || !strings.Contains(string(b), ") T ")
		})
	})
}

// enter moves the process into the groups with the given directories.
func (l *load) enter(dirs ...string) {
	l.t.Helper()
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(l.cmd.Process.Pid)), 0); err != nil {
			l.t.Fatal(err)
		}
	}
}

// leave moves the process out of its groups, so that their counters do not change any more.
// They might while it sleeps, is stopped or has just ended: on a busy machine it may stay
// on its CPU for a while after its state has changed.
func (l *load) leave() {
	l.t.Helper()
	l.enter(mounts...)
}

// end moves the process out of its groups, ends it and waits for it.
func (l *load) end() {
	if l.in == nil {
		return
	}
	l.leave()
	_ = l.in.Close()
	l.in = nil
	_ = l.cmd.Process.Signal(unix.SIGCONT) // it may be stopped
	if err := l.cmd.Wait(); err != nil {
		l.t.Error(err)
	}
}

// A fixture is this machine, read tick by tick by one reader, and its accounts.
type fixture struct {
	t      *testing.T
	h      *hostfs.FS
	table  *cgroup.Table
	books  *attribute.Accounts
	window usage.Window
	snap   usage.Snapshot
	lost   int64 // births and deaths that were missed, but for those of other tests and programs
	others othersLives

	booked map[string]int64 // CPU ns by path
	used   map[string]usage.Usage
	level  map[string]int64 // memory in the latest tick, by path
	rows   map[string]int   // in how many windows
}

// both runs a test with each reader on this machine.
func both(t *testing.T, f func(t *testing.T, open func(cgroup.Config) *fixture)) {
	for _, reader := range []string{"bpf", "files"} {
		t.Run(reader, func(t *testing.T) {
			if os.Getenv(unifiedEnv) != "" {
				hosttest.Need(t, "root", "cgroup2")
			} else {
				hosttest.Need(t, "root", "cgroup1", "memcg1")
			}
			f(t, func(cfg cgroup.Config) *fixture { return openFixture(t, reader, cfg, bpf.Default()) })
		})
	}
}

func config() cgroup.Config {
	return cgroup.Config{Node: "node", Boot: "boot", Every: 3, Files: 1000}
}

func openFixture(t *testing.T, reader string, cfg cgroup.Config, kernel bpf.Config) *fixture {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{t: t, h: h}
	log := slog.New(&s.others)
	if reader == "files" {
		s.table, err = cgroup.OpenFiles(h, cfg, log)
	} else {
		hosttest.Need(t, "bpf")
		kernel.Parts = bpf.Walks | bpf.Events | bpf.Forks | bpf.Disk
		if kernel.Ring == bpf.Default().Ring {
			kernel.Ring = 16 << 20 // other tests may make many groups between two ticks
		}
		if kernel.Hierarchies, err = cgroup.FollowedByBPF(h); err != nil {
			t.Fatal(err)
		}
		k, kerr := bpf.Open(kernel)
		if kerr != nil {
			t.Fatal(kerr)
		}
		t.Cleanup(func() {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
		s.table, err = cgroup.OpenBPF(h, k, cfg, log)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.table.Close(); err != nil {
			t.Error(err)
		}
	})
	s.start()
	return s
}

func (f *fixture) start() {
	f.books = attribute.New("node")
	f.booked, f.level, f.rows = map[string]int64{}, map[string]int64{}, map[string]int{}
	f.used = map[string]usage.Usage{}
	f.tick()
}

// othersLives counts, from the log of a reader, the lives that it found replaced in groups that no test of
// this process made: the reader follows the whole machine, and on a busy one it meets them at any time.
type othersLives struct{ replaced int64 }

func (*othersLives) Enabled(context.Context, slog.Level) bool { return true }
func (o *othersLives) WithAttrs([]slog.Attr) slog.Handler     { return o }
func (o *othersLives) WithGroup(string) slog.Handler          { return o }

func (o *othersLives) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "life replaced" {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "path" && !ownGroup(a.Value.String()) {
			o.replaced++
		}
		return true
	})
	return nil
}

// ownGroup reports whether a test of this process made the group at p.
func ownGroup(p string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	return strings.HasPrefix(first, "mete-test-") && strings.HasSuffix(first, fmt.Sprintf("-%d", os.Getpid()))
}

// failedTick reads the machine without booking the snapshot, as when another source fails.
func (f *fixture) failedTick() {
	f.t.Helper()
	c, err := f.h.Clocks()
	if err != nil {
		f.t.Fatal(err)
	}
	f.snap = usage.Snapshot{Boot: "boot", At: c.Boottime, Mono: c.Monotonic, Groups: f.snap.Groups}
	f.snap.Node = usage.Node{CPUs: 4096, MemTotal: 1 << 45, MemFree: 1 << 44}
	if err := f.table.Read(&f.snap); err != nil {
		f.t.Fatal(err)
	}
	f.checkOrder()
}

// tick reads the machine and books the snapshot, which must balance.
func (f *fixture) tick() {
	f.t.Helper()
	f.failedTick()
	f.lost += f.snap.Lost - f.others.replaced
	f.others.replaced = 0
	b := f.books.Tick(&f.snap)
	f.table.Booked()
	if !b.IsBalanced(usage.CPU) || !b.IsBalanced(usage.Memory) {
		f.t.Errorf("the accounts do not balance: %+v", b)
	}
	clear(f.level)
	for _, r := range f.books.Live().Rows {
		if r.Memory != nil {
			f.level[r.Path] += *r.Memory
		}
	}
	f.books.CloseWindow(&f.window)
	if f.window.Balance.Violations > 0 {
		f.t.Errorf("%d violations", f.window.Balance.Violations)
	}
	for _, r := range f.window.Rows {
		f.booked[r.Workload.Path] += r.Usage.Amount[usage.CPU]
		f.rows[r.Workload.Path]++
		sum := f.used[r.Workload.Path]
		sum.Add(&r.Usage)
		f.used[r.Workload.Path] = sum
	}
}

// rest takes a tick while the loads are out of their groups, so that no counter changes
// during the reading.
func (f *fixture) rest(loads ...*load) {
	f.t.Helper()
	for _, l := range loads {
		l.leave()
	}
	f.tick()
	for _, l := range loads {
		l.enter(l.dirs...)
	}
}

// checkOrder checks the guarantees of every snapshot.
func (f *fixture) checkOrder() {
	f.t.Helper()
	seen := map[usage.Slot]bool{usage.NoSlot: true}
	slots := map[usage.Slot]string{}
	for _, g := range f.snap.Groups {
		if old, twice := slots[g.Slot]; twice {
			f.t.Errorf("%s has the slot of %s", g.Workload.Path, old)
		}
		slots[g.Slot] = g.Workload.Path
		if !seen[g.Parent] {
			f.t.Errorf("%s precedes its parent", g.Workload.Path)
		}
		seen[g.Slot] = true
	}
	for _, g := range f.snap.Groups {
		if _, ok := slots[g.MemoryParent]; !ok && g.MemoryParent != usage.NoSlot {
			f.t.Errorf("%s: its memory parent is slot %d, which is not in use", g.Workload.Path, g.MemoryParent)
		}
	}
}

// group returns the group of the latest snapshot at a path, nil if there is none.
func (f *fixture) group(p string) *usage.Group {
	i := slices.IndexFunc(f.snap.Groups, func(g *usage.Group) bool { return g.Workload.Path == p && !g.Final })
	if i < 0 {
		return nil
	}
	return f.snap.Groups[i]
}

// below returns the sum booked to the group at p and all groups below it.
func (f *fixture) below(p string) (ns int64) {
	for q, v := range f.booked {
		if q == p || strings.HasPrefix(q, p+"/") {
			ns += v
		}
	}
	return ns
}

// The hierarchies in which these tests create groups.
const (
	cpuMount    = "/sys/fs/cgroup/cpuacct"
	memoryMount = "/sys/fs/cgroup/memory"
)

var mounts = []string{cpuMount, memoryMount}

// top creates a group for a test in each hierarchy and returns its path.
func top(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	p := fmt.Sprintf("/mete-test-%s-%d", name, os.Getpid())
	for _, m := range mounts {
		if _, err := os.Stat(m); err != nil {
			t.Skipf("needs version 1 controllers mounted apart: %v", err)
		}
		t.Cleanup(func() { removeAll(t, m+p) })
		mkdir(t, m+p)
	}
	return p
}

func mkdir(t *testing.T, dirs ...string) {
	t.Helper()
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// rmdir removes groups; the kernel may need a moment after the last process has ended.
func rmdir(t *testing.T, dirs ...string) {
	t.Helper()
	for _, d := range dirs {
		testkit.Eventually(t, d+" is removed", func() bool {
			err := os.Remove(d)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
				t.Fatal(err)
			}
			return !errors.Is(err, unix.EBUSY)
		})
	}
}

func removeAll(t *testing.T, dir string) {
	t.Helper()
	var dirs []string
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, p)
		}
		return nil // it was just removed
	})
	slices.Reverse(dirs)
	rmdir(t, dirs...)
}

// in returns the directories of a group in all hierarchies of the tests.
func in(p string) (dirs []string) {
	for _, m := range mounts {
		dirs = append(dirs, m+p)
	}
	return dirs
}

// number reads a file with one number.
func number(t *testing.T, file string) int64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// usageOf returns the CPU time of a group and all groups below it, in ns. Version 2 shows
// whole microseconds.
func usageOf(t *testing.T, p string) int64 {
	t.Helper()
	if os.Getenv(unifiedEnv) != "" {
		return unifiedUsage(t, p)
	}
	return number(t, cpuMount+p+"/cpuacct.usage")
}

// differ reports whether two amounts of CPU time differ, as far as the kernel shows them: of each group
// of version 2 it shows whole microseconds.
func differ(a, b int64) bool {
	const groups = 5 // of which an amount is the sum, at most
	return a != b && (os.Getenv(unifiedEnv) == "" || max(a-b, b-a) > groups*1000)
}

// life creates a group, uses CPU time in it and removes it; it returns the CPU time.
func life(t *testing.T, p, work string) int64 {
	t.Helper()
	mkdir(t, in(p)...)
	l := newLoad(t, in(p)...)
	l.do(work)
	l.end()
	used := usageOf(t, p)
	rmdir(t, in(p)...)
	return used
}
