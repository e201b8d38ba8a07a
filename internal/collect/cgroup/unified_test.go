package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// unifiedEnv is set in a process of unified, and where all tests run on cgroup v2 alone: the mount
// point of cgroup v2.
const unifiedEnv = "METE_TEST_UNIFIED"

// unified runs a test on cgroup v2 alone, as most machines have it: in another process of
// this program, in a mount namespace without the hierarchies of version 1.
func unified(t *testing.T, f func(t *testing.T)) {
	if os.Getenv(unifiedEnv) != "" {
		f(t)
		return
	}
	hosttest.Need(t, "root", "cgroup2", "bpf")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	if end, ok := t.Deadline(); ok {
		cmd.Args = append(cmd.Args, "-test.timeout="+time.Until(end).String())
	}
	cmd.Env = append(os.Environ(), unifiedEnv+"="+unifiedMount(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("on cgroup v2 alone: %v\n%s", err, out)
	}
}

// unifiedMount returns where cgroup v2 is mounted.
func unifiedMount(t *testing.T) string {
	t.Helper()
	ms, err := mountsOf("cgroup2")
	if err != nil || len(ms) == 0 {
		t.Fatalf("mounts of cgroup2: %v, %v", ms, err)
	}
	return ms[0]
}

// mountsOf returns where this process sees file systems of a type, in the order of their mounting.
func mountsOf(kind string) (points []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	ms, err := procfmt.Mountinfo(b)
	for _, m := range ms {
		if m.Type == kind {
			points = append(points, m.Point)
		}
	}
	return points, err
}

// hideV1 unmounts all hierarchies of version 1 from the mount namespace of this process.
func hideV1() error {
	points, err := mountsOf("cgroup")
	for _, p := range slices.Backward(points) {
		err = errors.Join(err, unix.Unmount(p, unix.MNT_DETACH))
	}
	return err
}

func unifiedUsage(t *testing.T, p string) int64 {
	t.Helper()
	b, err := os.ReadFile(mounts[0] + p + "/cpu.stat")
	if err != nil {
		t.Fatal(err)
	}
	c, err := procfmt.CPUStat(b)
	if err != nil || !c.HasUsage {
		t.Fatalf("%s: no usage: %v", p, err)
	}
	return c.Usage
}

// openUnified opens a fixture for cgroup v2 alone. There, the kernel counts processes by
// their groups of version 2.
func openUnified(t *testing.T) *fixture {
	t.Helper()
	cfg := bpf.Default()
	cfg.Unified = true
	return openFixture(t, "bpf", config(), cfg)
}

// deaths collects the kernel's own figures of groups at their ends. Reading them from a
// file would make the kernel bring the sums of all groups above up to date.
type deaths struct {
	t   *testing.T
	k   *bpf.Kernel
	own map[string]int64 // CPU ns without groups below, by path, of all lives
}

func watchDeaths(t *testing.T) *deaths {
	t.Helper()
	cfg := bpf.Default()
	cfg.Parts = bpf.Events
	cfg.Ring = 16 << 20           // the events of the whole test, and of others
	cfg.Hierarchies = []uint32{0} // cgroup v2
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return &deaths{t: t, k: k, own: map[string]int64{}}
}

// read returns what the groups that have ended used themselves.
func (d *deaths) read() map[string]int64 {
	d.t.Helper()
	d.k.Drain(func(e *bpf.Event) {
		switch {
		case e.Born || e.Hierarchy != 0:
		case e.Has&bpf.HasOwnCPU == 0:
			d.t.Errorf("%s ended without its own CPU time", e.Path)
		default:
			d.own[string(e.Path)] += int64(e.OwnCPU)
		}
	})
	if lost := d.k.Lost(); lost > 0 {
		d.t.Errorf("%d events lost", lost)
	}
	return d.own
}

// run uses CPU time in a group.
func run(t *testing.T, p, work string) {
	t.Helper()
	l := newLoad(t, in(p)...)
	l.do(work)
	l.end()
}

// checkBooked checks what was booked to groups since they were born, and that it is measured.
func (f *fixture) checkBooked(want map[string]int64, paths ...string) {
	f.t.Helper()
	for _, p := range paths {
		u := f.used[p]
		if got := u.Amount[usage.CPU]; got != want[p] || want[p] == 0 {
			f.t.Errorf("%s: booked %d ns, its counter shows %d", p, got, want[p])
		}
		if q := u.Quality.Get(usage.CPU); q != usage.Measured {
			f.t.Errorf("%s: its CPU time is %v", p, q)
		}
	}
}

// checkSum checks what was booked to the group at p and all groups below it since p was born.
func (f *fixture) checkSum(p string) {
	f.t.Helper()
	if got, want := f.below(p), usageOf(f.t, p); got/1000 != want/1000 {
		f.t.Errorf("booked %d ns below %s, its counter shows %d", got, p, want)
	}
	if f.lost > 0 {
		f.t.Errorf("%d births or deaths lost", f.lost)
	}
}

// Groups that had others below them, and end between two ticks: each is booked the last
// value of its own counter, measured.
func TestUnifiedDeaths(t *testing.T) {
	unified(t, func(t *testing.T) {
		s, d := openUnified(t), watchDeaths(t)
		p := top(t)
		var groups []string
		for i := range 12 {
			g := fmt.Sprintf("%s/g%d", p, i)
			groups = append(groups, g, g+"/child")
			mkdir(t, in(g)...)
			mkdir(t, in(g+"/child")...)
			if i%3 == 0 {
				s.tick()
			}
			run(t, g+"/child", "4ms")
			if i%3 == 1 {
				s.tick()
			}
			rmdir(t, in(g+"/child")...)
			if i%3 == 2 {
				s.tick()
			}
			run(t, g, "3ms")
			rmdir(t, in(g)...)
			if i%2 == 0 {
				s.tick()
			}
		}
		s.tick()
		s.checkBooked(d.read(), groups...)
		if u := s.used[p]; u.Quality.Get(usage.CPU) != usage.Measured || u.Amount[usage.CPU] != 0 {
			t.Errorf("the group above: %d ns, %v; want none, measured", u.Amount[usage.CPU], u.Quality.Get(usage.CPU))
		}
		s.checkSum(p)
	})
}

// A container with delegated groups, several lives of them and at several depths, counts as
// one, also if all of it ends between two ticks.
func TestUnifiedDelegated(t *testing.T) {
	unified(t, func(t *testing.T) {
		s, d := openUnified(t), watchDeaths(t)
		p := top(t)
		box := p + "/docker/" + hosttest.ContainerID(t)
		mkdir(t, in(p+"/docker")...)
		for _, tick := range []bool{false, true} {
			before := s.booked[box]
			clear(d.own)
			mkdir(t, in(box)...)
			for range 2 {
				mkdir(t, in(box+"/inner")...)
				mkdir(t, in(box+"/inner/deep")...)
				run(t, box+"/inner/deep", "3ms")
				rmdir(t, in(box+"/inner/deep")...)
				run(t, box+"/inner", "2ms")
				if tick {
					s.tick()
				}
				rmdir(t, in(box+"/inner")...)
			}
			run(t, box, "4ms")
			rmdir(t, in(box)...)
			s.tick()
			want := int64(0)
			for g, ns := range d.read() {
				if g == box || strings.HasPrefix(g, box+"/") {
					want += ns
				}
			}
			if got := s.booked[box] - before; got != want || want == 0 {
				t.Errorf("ticks between %t: booked %d ns to the container, its counters show %d", tick, got, want)
			}
			s.checkSum(p)
		}
		if q := s.used[p+"/docker"].Quality.Get(usage.CPU); q != usage.Measured {
			t.Errorf("the CPU time of the group above is %v", q)
		}
	})
}

// The last use of a group that existed before the first tick cannot be known, since groups
// below it may have ended earlier: the part that cannot be given to it stays above it,
// apportioned.
func TestUnifiedDeathOfOlder(t *testing.T) {
	unified(t, func(t *testing.T) {
		p := top(t)
		mkdir(t, in(p+"/old")...)
		mkdir(t, in(p+"/old/past")...)
		run(t, p+"/old/past", "20ms")
		rmdir(t, in(p+"/old/past")...)
		before := usageOf(t, p)
		s := openUnified(t)
		run(t, p+"/old", "4ms")
		rmdir(t, in(p+"/old")...)
		s.tick()
		u := s.used[p]
		if q := u.Quality.Get(usage.CPU); q != usage.Apportioned {
			t.Errorf("the CPU time of the group above is %v", q)
		}
		if got, want := s.below(p), usageOf(t, p)-before; got/1000-want/1000 > 1 || want/1000-got/1000 > 1 {
			t.Errorf("booked %d ns below %s, its counter gained %d", got, p, want)
		}
	})
}

// Of a group that is killed with the groups below it nothing is lost that it had used, and
// its processes are counted.
func TestUnifiedKilled(t *testing.T) {
	unified(t, func(t *testing.T) {
		p := top(t)
		g := p + "/g"
		if _, err := os.Stat(mounts[0] + p + "/cgroup.kill"); err != nil {
			t.Fatal(err)
		}
		s := openUnified(t)
		mkdir(t, in(g)...)
		mkdir(t, in(g+"/child")...)
		var loads []*load
		for _, at := range []string{g, g + "/child"} {
			l := newLoad(t) // outside
			l.do("fork 1")  // before its first process the Go runtime starts another
			l.enter(in(at)...)
			l.do("fork 5")
			l.do("5ms")
			loads = append(loads, l)
		}
		want := usageOf(t, g)
		if err := os.WriteFile(filepath.Join(mounts[0]+g, "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		for _, l := range loads {
			_ = l.in.Close()
			l.in = nil
			_ = l.cmd.Wait() // killed
		}
		rmdir(t, in(g+"/child")...)
		rmdir(t, in(g)...)
		s.tick()
		got := s.below(g)
		if all := usageOf(t, p); got < want || got > all+999 {
			t.Errorf("booked %d ns to the killed groups, want %d before and %d after the end", got, want, all)
		}
		for _, at := range []string{g, g + "/child"} {
			if u := s.used[at]; u.Amount[usage.Processes] != 5 || !u.Present.Has(usage.Processes) {
				t.Errorf("%s: booked %d processes, want 5", at, u.Amount[usage.Processes])
			}
		}
	})
}

// Processes of groups that end between two ticks count for these, those of delegated groups
// for their container.
func TestUnifiedProcesses(t *testing.T) {
	unified(t, func(t *testing.T) {
		s := openUnified(t)
		p := top(t)
		box := p + "/docker/" + hosttest.ContainerID(t)
		mkdir(t, in(p+"/docker")...)
		l := newLoad(t)
		l.do("fork 1") // before its first process the Go runtime starts another
		forks := map[string]int{p + "/a": 3, p + "/a/b": 2, box: 2, box + "/inner": 4}
		want := map[string]int64{p + "/a": 3, p + "/a/b": 2, box: 6}
		for _, g := range []string{p + "/a", p + "/a/b", box, box + "/inner"} {
			mkdir(t, in(g)...)
			l.enter(in(g)...)
			l.do(fmt.Sprintf("fork %d", forks[g]))
			l.leave()
		}
		for _, g := range []string{p + "/a/b", p + "/a", box + "/inner", box} {
			rmdir(t, in(g)...)
		}
		s.tick()
		for g, n := range want {
			if got := s.used[g].Amount[usage.Processes]; got != n {
				t.Errorf("%s: booked %d processes, want %d", g, got, n)
			}
		}
	})
}
