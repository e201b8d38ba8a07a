package sources_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

const mib = 1 << 20

// A unifiedMachine is this machine, whose control groups are version 2 alone, its accounts, and a
// group for a test.
type unifiedMachine struct {
	t     *testing.T
	m     *sources.Machine
	log   strings.Builder
	mount string
	path  string // of the group for the test
	// booked is what each group used since the first tick, and level the memory that it holds at
	// the latest, both without the groups below it.
	booked map[string]usage.Usage
	level  map[string]int64
	total  usage.Balance
}

// unified runs a test with each reader on a machine with cgroup v2 alone. Each tick closes a window.
func unified(t *testing.T, f func(u *unifiedMachine)) {
	hosttest.Need(t, "root", "unified")
	for _, reader := range []string{sources.BPF, sources.Files} {
		t.Run(reader, func(t *testing.T) {
			if reader == sources.BPF {
				hosttest.Need(t, "bpf")
			}
			u := &unifiedMachine{t: t, mount: groupMounts(t)["v2"], booked: map[string]usage.Usage{}, level: map[string]int64{}}
			name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
			u.path = fmt.Sprintf("/mete-%s-%d", name, os.Getpid())
			cfg := everyTick(reader)
			cfg.Energy.NVML = "off"
			m, err := sources.Open(cfg, slog.New(slog.NewTextHandler(&u.log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			u.m = m
			defer mustClose(t, m)
			mustTickLost(t, m)
			u.group("", "cpu", "io", "memory", "pids")
			f(u)
			if strings.Contains(u.log.String(), "level=WARN") || strings.Contains(u.log.String(), "level=ERROR") {
				t.Errorf("log:\n%s", &u.log)
			}
		})
	}
}

// dir returns the directory of a group below the test's.
func (u *unifiedMachine) dir(below string) string { return u.mount + u.path + below }

// group creates a group below the test's, and enables controllers for the groups below it. It is
// removed at the end, if it exists then.
func (u *unifiedMachine) group(below string, controllers ...string) {
	u.t.Helper()
	dir := u.dir(below)
	if err := os.Mkdir(dir, 0o755); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { u.remove(below) })
	for _, c := range controllers {
		put(u.t, dir+"/cgroup.subtree_control", "+"+c)
	}
}

// remove removes a group; the kernel may need a moment after the last process has ended.
func (u *unifiedMachine) remove(below string) {
	u.t.Helper()
	testkit.Eventually(u.t, below+" is removed", func() bool {
		err := os.Remove(u.dir(below))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
			u.t.Fatal(err)
		}
		return !errors.Is(err, unix.EBUSY)
	})
}

// tick takes a tick. Its parts sum to the whole, and its rows to the parts.
func (u *unifiedMachine) tick() {
	u.t.Helper()
	mustTickLost(u.t, u.m)
	w := u.m.ClosedWindow()
	if w == nil {
		u.t.Fatal("the tick closed no window")
	}
	u.total.Add(&w.Balance)
	var sums usage.Usage
	for _, r := range w.Rows {
		sum := u.booked[r.Workload.Path]
		sum.Add(&r.Usage)
		u.booked[r.Workload.Path] = sum
		sums.Add(&r.Usage)
	}
	for i, r := range usage.Wholes {
		if got, want := sums.Amount[r], w.Balance.Whole[i]+w.Balance.Skew[i]; got != want {
			u.t.Errorf("the rows have %d of %v, the machine %d", got, r, want)
		}
	}
	clear(u.level)
	for _, r := range u.m.Live().Rows {
		if r.Memory != nil {
			u.level[r.Path] += *r.Memory
		}
	}
}

// reading returns what the latest snapshot shows of a group; nil if it is not in it.
func (u *unifiedMachine) reading(below string) *usage.Group {
	i := slices.IndexFunc(u.m.Snapshot().Groups, func(g *usage.Group) bool { return g.Workload.Path == u.path+below && !g.Final })
	if i < 0 {
		return nil
	}
	return u.m.Snapshot().Groups[i]
}

// counters are those of a group in the kernel's files, by the resource that they show, with all
// groups below it. Of files that the group lacks there are none.
type counters map[usage.Resource]int64

func (u *unifiedMachine) counters(below string) counters {
	u.t.Helper()
	c := counters{}
	read := func(file string, take func(b []byte) error) {
		b, err := os.ReadFile(u.dir(below) + "/" + file)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil {
			err = take(b)
		}
		if err != nil {
			u.t.Fatalf("%s/%s: %v", below, file, err)
		}
	}
	number := func(r usage.Resource) func(b []byte) error {
		return func(b []byte) (err error) {
			c[r], err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			return err
		}
	}
	read("cpu.stat", func(b []byte) error {
		s, err := procfmt.CPUStat(b)
		c[usage.CPU], c[usage.CPUUser], c[usage.CPUSystem] = s.Usage, s.User, s.System
		if s.HasThrottledTime {
			c[usage.CPUThrottled], c[usage.CPUPeriods], c[usage.CPUThrottledPeriods] = s.ThrottledTime, s.Periods, s.Throttled
		}
		return err
	})
	read("memory.current", number(usage.Memory))
	read("pids.current", number(usage.PIDs))
	read("memory.stat", func(b []byte) error {
		s, err := procfmt.MemoryStat(b)
		c[usage.MemoryAnon], c[usage.MemoryFile] = s.Anon, s.File
		return err
	})
	read("memory.events.local", func(b []byte) error {
		for key, r := range map[string]usage.Resource{"oom_kill": usage.OOMKills, "high": usage.MemoryHighEvents, "max": usage.MemoryMaxEvents} {
			n, ok, err := procfmt.KeyValue(b, key)
			if err != nil {
				return err
			}
			if ok {
				c[r] = n
			}
		}
		return nil
	})
	read("io.stat", func(b []byte) error {
		c[usage.DiskRead], c[usage.DiskWritten], c[usage.DiskReads], c[usage.DiskWrites] = 0, 0, 0, 0
		return procfmt.IOStat(b, func(_ procfmt.Dev, s procfmt.IO) {
			c[usage.DiskRead] += s.ReadBytes
			c[usage.DiskWritten] += s.WrittenBytes
			c[usage.DiskReads] += s.Reads
			c[usage.DiskWrites] += s.Writes
		})
	})
	return c
}

// below returns what was booked to a group and all groups below it.
func (u *unifiedMachine) below(below string, r usage.Resource) (sum int64) {
	for p, b := range u.booked {
		if p == u.path+below || strings.HasPrefix(p, u.path+below+"/") {
			sum += b.Amount[r]
		}
	}
	return sum
}

// A span is the kernel's counters of a group before a tick and after it.
type span struct{ before, after counters }

// measure takes a tick and returns the counters of groups around it.
func (u *unifiedMachine) measure(groups ...string) map[string]span {
	u.t.Helper()
	spans := map[string]span{}
	for _, g := range groups {
		spans[g] = span{before: u.counters(g)}
	}
	u.tick()
	for _, g := range groups {
		spans[g] = span{spans[g].before, u.counters(g)}
	}
	return spans
}

// within checks a figure against the kernel's, which has the unit of the file: microseconds of time.
func (s span) within(t *testing.T, group string, r usage.Resource, got int64) {
	t.Helper()
	low, okLow := s.before[r]
	high, ok := s.after[r]
	if !okLow || !ok {
		t.Errorf("%s: the kernel does not show %v", group, r)
		return
	}
	if low > high { // a level that fell
		low, high = high, low
	}
	switch r {
	case usage.CPU:
		high += 999 // version 2 shows whole microseconds
	}
	if got < low || got > high {
		t.Errorf("%s: %v %d, the kernel shows %d to %d", group, r, got, low, high)
	}
}

// checkBooked checks the counters booked to a group and all groups below it since it was born.
func (u *unifiedMachine) checkBooked(spans map[string]span, group string, resources ...usage.Resource) {
	u.t.Helper()
	for _, r := range resources {
		spans[group].within(u.t, group, r, u.below(group, r))
	}
}

// checkLevel checks the memory of a group against the kernel's counter, less those of groups below.
func (u *unifiedMachine) checkLevel(spans map[string]span, group string, below ...string) {
	u.t.Helper()
	got, ok := u.level[u.path+group]
	if !ok {
		u.t.Errorf("%s: its memory is absent", group)
	}
	for _, g := range below {
		got += u.level[u.path+g]
	}
	spans[group].within(u.t, group, usage.Memory, got)
}

// checkQuality checks that what was booked to groups is measured.
func (u *unifiedMachine) checkQuality(groups []string, resources ...usage.Resource) {
	u.t.Helper()
	for _, g := range groups {
		b := u.booked[u.path+g]
		for _, r := range resources {
			if q := b.Quality.Get(r); !b.Present.Has(r) || q != usage.Measured {
				u.t.Errorf("%s: its %v is %v", g, r, q)
			}
		}
	}
}

// disk returns a disk that tests may overwrite, of which nothing is in the page cache. The test keeps
// it open: the cache of a disk goes when its last user closes it.
func (u *unifiedMachine) disk() string {
	u.t.Helper()
	name := os.Getenv("METE_TEST_DISK")
	if name == "" {
		u.t.Skip("METE_TEST_DISK does not name a disk that tests may overwrite")
	}
	f, err := os.Open(name)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = f.Close() }) // nothing was written
	unix.Sync()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		u.t.Fatal(err)
	}
	return name
}

var diskResources = []usage.Resource{usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites}

// A group holds a known amount of anonymous memory and of page cache; what is left of it after the
// end of the group is in the group above.
func TestUnifiedMemory(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/a", "memory")
		u.group("/a/b")
		u.group("/c")
		b, c := startWorker(u.t, u.dir("/a/b")), startWorker(u.t, u.dir("/c"))
		b.stop()
		first := u.measure("", "/a", "/a/b", "/c")
		b.resume()
		const anon, file = 24 * mib, 12 * mib
		b.do("anon %d", anon)
		b.do("read %s 0 %d", disk, file)
		b.stop()
		c.stop()
		now := u.measure("", "/a", "/a/b", "/c")
		u.checkLevel(now, "/a/b")
		u.checkLevel(now, "/c")
		u.checkLevel(now, "/a", "/a/b")
		u.checkLevel(now, "", "/a", "/a/b", "/c")
		for _, g := range []string{"", "/a"} { // the kernel charges a group for those that were created in it
			if v := u.level[u.path+g]; v > mib {
				u.t.Errorf("%q: %d bytes of its own, it holds none", g, v)
			}
		}
		g := u.reading("/a/b")
		for r, known := range map[usage.Resource]int64{usage.MemoryAnon: anon, usage.MemoryFile: file} {
			now["/a/b"].within(u.t, "/a/b", r, g.Value[r])
			grew := now["/a/b"].after[r] - first["/a/b"].after[r]
			if grew < known || grew > known+4*mib {
				u.t.Errorf("%v grew by %d, the process took %d", r, grew, known)
			}
		}
		// The kernel charges memory ahead, and may undo that for an idle group.
		if grew := now["/a/b"].after[usage.Memory] - first["/a/b"].after[usage.Memory]; grew < anon+file-mib || grew > anon+file+6*mib {
			u.t.Errorf("the memory grew by %d, the process took %d", grew, anon+file)
		}
		if parent := u.reading("/a"); parent.Has.Has(usage.MemoryAnon) {
			u.t.Errorf("a group with groups below it has anonymous memory of its own: %d", parent.Value[usage.MemoryAnon])
		}
		b.end()
		u.remove("/a/b")
		now = u.measure("/a")
		u.checkLevel(now, "/a")
		if v := u.level[u.path+"/a"]; v < file {
			u.t.Errorf("the group above an ended one holds %d bytes, want its page cache of %d", v, file)
		}
		if v := u.level[u.path+"/a/b"]; v != 0 {
			u.t.Errorf("an ended group holds %d bytes", v)
		}
	})
}

// A limit of memory is shown, and processes killed for want of it count, for the group alone.
func TestUnifiedOOM(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		u.group("/a", "memory")
		u.group("/a/b")
		put(u.t, u.dir("/a/b/memory.max"), fmt.Sprint(32*mib))
		w := startWorker(u.t, u.dir("/a/b"))
		u.tick()
		if g := u.reading("/a/b"); g.MemoryLimit != 32*mib {
			u.t.Errorf("limit %d, want %d", g.MemoryLimit, 32*mib)
		}
		if _, err := fmt.Fprintf(w.in, "anon %d\n", 64*mib); err != nil {
			u.t.Fatal(err)
		}
		if text, err := w.out.ReadString('\n'); err == nil {
			u.t.Fatalf("the worker says %q, want it killed", text)
		}
		w.end()
		now := u.measure("/a", "/a/b")
		u.checkBooked(now, "/a/b", usage.OOMKills, usage.MemoryMaxEvents, usage.MemoryHighEvents)
		if n := u.below("", usage.OOMKills); n != 1 {
			u.t.Errorf("%d processes killed, want 1", n)
		}
		if u.below("", usage.MemoryMaxEvents) == 0 || u.below("", usage.MemoryHighEvents) != 0 {
			u.t.Errorf("the memory limit was reached %d times, memory.high %d times", u.below("", usage.MemoryMaxEvents), u.below("", usage.MemoryHighEvents))
		}
	})
}

// Known bytes, written and read with and without the page cache, count once, for the group that
// caused them, and are traffic of the disk.
func TestUnifiedDisk(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/a", "io", "memory")
		u.group("/a/b")
		u.group("/a/c")
		b, c := startWorker(u.t, u.dir("/a/b")), startWorker(u.t, u.dir("/a/c"))
		b.do("direct-write %s 0 %d", disk, 8*mib)
		b.do("direct-read %s %d %d", disk, 8*mib, 6*mib)
		u.tick()
		c.do("read %s %d %d", disk, 32*mib, 2*mib)
		c.do("direct-write %s %d %d", disk, 40*mib, 1*mib)
		now := u.measure("", "/a", "/a/b", "/a/c")
		for _, g := range []string{"/a/b", "/a/c", "/a", ""} {
			u.checkBooked(now, g, diskResources...)
		}
		u.checkQuality([]string{"/a", "/a/b", "/a/c"}, diskResources...)
		for g, known := range map[string][2]int64{"/a/b": {6 * mib, 8 * mib}, "/a/c": {2 * mib, 1 * mib}, "/a": {}, "": {}} {
			for i, r := range []usage.Resource{usage.DiskRead, usage.DiskWritten} {
				if got := u.booked[u.path+g].Amount[r]; got != known[i] {
					u.t.Errorf("%q: %v %d, the process moved %d", g, r, got, known[i])
				}
			}
		}
		// Bytes written through the page cache count for the group that the kernel chooses, which may be
		// one that wrote to the disk before, and once for the machine.
		b.do("write %s %d %d", disk, 16*mib, 4*mib)
		now = u.measure("/a/b")
		u.checkBooked(now, "/a/b", diskResources...)
		if got := u.total.Whole.Get(usage.DiskWritten); got != 13*mib {
			u.t.Errorf("the machine wrote %d bytes, want %d", got, 13*mib)
		}
		for _, r := range diskResources {
			if skew := u.total.Skew.Get(r); skew != 0 {
				u.t.Errorf("%v: the parts exceed the whole by %d: %+v", r, skew, u.total)
			}
		}
		// The last writes of a group that ends between two ticks stay in the group above.
		whole := u.below("", usage.DiskWritten)
		c.do("direct-write %s %d %d", disk, 41*mib, 3*mib)
		c.end()
		u.remove("/a/c")
		now = u.measure("/a")
		if got := u.below("", usage.DiskWritten) - whole; got != 3*mib {
			u.t.Errorf("booked %d of the %d bytes that a group wrote before its end; kernel: %+v; %+v", got, 3*mib, now["/a"], u.total)
		}
	})
}

// The threads of a process may be in groups of their own, below its own. Their CPU time and tasks
// are theirs; memory and disk, which the kernel counts for the process, are its group's. All of it
// counts once.
func TestUnifiedThreaded(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/d")
		u.group("/d/t1")
		put(u.t, u.dir("/d/t1/cgroup.type"), "threaded")
		waitFor(u.t, u.dir("/d/cgroup.type"), "domain threaded")
		u.group("/d/t2")
		put(u.t, u.dir("/d/t2/cgroup.type"), "threaded")
		put(u.t, u.dir("/d/cgroup.subtree_control"), "+cpu +pids")
		w := startWorker(u.t, u.dir("/d"))
		u.tick()
		w.do("burn 10")
		w.do("anon %d", 8*mib)
		w.do("direct-write %s 0 %d", disk, mib)
		w.do("thread %s 30", u.dir("/d/t1"))
		w.do("thread %s 20", u.dir("/d/t2"))
		w.do("fork 2")
		w.stop()
		now := u.measure("", "/d", "/d/t1", "/d/t2")
		for _, g := range []string{"", "/d", "/d/t1", "/d/t2"} {
			u.checkBooked(now, g, usage.CPU)
		}
		for g, ms := range map[string]int64{"/d": 10, "/d/t1": 30, "/d/t2": 20} {
			if ns := u.booked[u.path+g].Amount[usage.CPU]; ns < ms*1e6 {
				u.t.Errorf("%s: booked %d ns, its threads used %d ms", g, ns, ms)
			}
		}
		u.checkQuality([]string{"/d", "/d/t1", "/d/t2"}, usage.CPU)
		u.checkLevel(now, "/d")
		if v := u.level[u.path+"/d"]; v < 8*mib {
			u.t.Errorf("the domain holds %d bytes, its process took %d", v, 8*mib)
		}
		u.checkBooked(now, "/d", diskResources...)
		for _, g := range []string{"/d/t1", "/d/t2"} {
			if b := u.booked[u.path+g]; b.Present.Has(usage.Memory) || b.Present.Has(usage.DiskWritten) {
				u.t.Errorf("%s has memory or disk traffic: %+v", g, b)
			}
		}
		if u.m.Reader == sources.BPF {
			if n := u.below("/d", usage.Processes); n != 2 {
				u.t.Errorf("%d processes, want 2", n)
			}
		}
		checkTasks(u, now, "/d")
	})
}

// checkTasks checks the tasks in a group and all below it at the latest tick.
func checkTasks(u *unifiedMachine, spans map[string]span, group string) {
	u.t.Helper()
	spans[group].within(u.t, group, usage.PIDs, u.reading(group).Value[usage.PIDs])
}

// A frozen group uses nothing, keeps its memory and its tasks, is neither lost nor booked twice, and
// continues when it is thawed.
func TestUnifiedFrozen(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		u.group("/a", "cpu", "memory", "pids")
		u.group("/a/b")
		w := startWorker(u.t, u.dir("/a/b"))
		w.do("anon %d", 8*mib)
		w.do("spin")
		u.tick()
		for _, at := range []string{"/a/b", "/a"} {
			put(u.t, u.dir(at+"/cgroup.freeze"), "1")
			waitFor(u.t, u.dir(at+"/cgroup.events"), "frozen 1")
			now := u.measure("/a", "/a/b")
			u.checkBooked(now, "/a", usage.CPU)
			u.checkBooked(now, "/a/b", usage.CPU)
			frozen := u.below("/a", usage.CPU)
			for range 3 {
				now = u.measure("/a", "/a/b")
				u.checkLevel(now, "/a/b")
				u.checkLevel(now, "/a", "/a/b")
				checkTasks(u, now, "/a/b")
			}
			if ns := u.below("/a", usage.CPU) - frozen; ns > 0 {
				u.t.Errorf("a frozen group used %d ns; the kernel: %+v", ns, now["/a"])
			}
			put(u.t, u.dir(at+"/cgroup.freeze"), "0")
			waitFor(u.t, u.dir(at+"/cgroup.events"), "frozen 0")
			testkit.Eventually(u.t, "the group uses CPU time again", func() bool {
				u.tick()
				return u.below("/a", usage.CPU) > frozen+1e6
			})
		}
		now := u.measure("/a", "/a/b")
		u.checkBooked(now, "/a", usage.CPU)
		u.checkBooked(now, "/a/b", usage.CPU)
		u.checkQuality([]string{"/a/b"}, usage.CPU, usage.Memory, usage.PIDs)
		// It ends while it is frozen.
		put(u.t, u.dir("/a/cgroup.freeze"), "1")
		waitFor(u.t, u.dir("/a/cgroup.events"), "frozen 1")
		put(u.t, u.dir("/a/cgroup.kill"), "1")
		w.end()
		u.remove("/a/b")
		now = u.measure("/a")
		u.checkBooked(now, "/a", usage.CPU)
		u.checkLevel(now, "/a")
	})
}

// A group is killed with the groups below it, and removed: nothing is lost of what it had used, and
// what it held is free or its parent's.
func TestUnifiedKilledGroup(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/a", "cpu", "io", "memory", "pids")
		u.group("/a/g", "cpu", "io", "memory", "pids")
		u.group("/a/g/h")
		u.group("/a/g/i")
		var workers []*worker
		for _, g := range []string{"/a/g/h", "/a/g/i"} {
			w := startWorker(u.t, u.dir(g))
			workers = append(workers, w)
			w.do("anon %d", 8*mib)
			w.do("direct-write %s 0 %d", disk, mib)
			w.do("burn 10")
		}
		u.tick()
		for _, w := range workers {
			w.do("burn 10")
		}
		used := u.counters("/a/g")
		put(u.t, u.dir("/a/g/cgroup.kill"), "1")
		for _, w := range workers {
			w.end()
		}
		waitFor(u.t, u.dir("/a/g/cgroup.events"), "populated 0")
		u.remove("/a/g/h")
		u.remove("/a/g/i")
		u.remove("/a/g")
		now := u.measure("", "/a")
		u.checkBooked(now, "/a", usage.CPU)
		u.checkBooked(now, "/a", diskResources...)
		u.checkLevel(now, "/a")
		if u.m.Reader == sources.BPF {
			if ns := u.below("/a/g", usage.CPU); ns < used[usage.CPU] {
				u.t.Errorf("booked %d ns by name, the group had used %d", ns, used[usage.CPU])
			}
			u.checkQuality([]string{"/a/g", "/a/g/h", "/a/g/i"}, usage.CPU)
		}
		if n := u.below("/a", usage.OOMKills); n != 0 {
			u.t.Errorf("%d processes killed for want of memory", n)
		}
		for p, v := range u.level {
			if strings.HasPrefix(p, u.path+"/a/") && v != 0 {
				u.t.Errorf("%s holds %d bytes after its end", p, v)
			}
		}
	})
}

// A container that was delegated to a user, with groups of that user below it: all of it counts for
// the container, once.
func TestUnifiedContainer(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/docker", "cpu", "io", "memory", "pids")
		box := "/docker/" + hosttest.ContainerID(u.t)
		u.group(box, "cpu", "io", "memory", "pids")
		for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} {
			if err := os.Chown(u.dir(box)+f, 1000, 1000); err != nil {
				u.t.Fatal(err)
			}
		}
		u.group(box+"/init", "cpu", "io", "memory", "pids")
		u.group(box + "/init/deep")
		u.group(box + "/app")
		w, x := startWorker(u.t, u.dir(box+"/init/deep")), startWorker(u.t, u.dir(box+"/app"))
		u.tick()
		w.do("burn 20")
		w.do("anon %d", 8*mib)
		w.do("direct-write %s 0 %d", disk, 2*mib)
		x.do("burn 10")
		x.do("anon %d", 4*mib)
		x.do("direct-write %s %d %d", disk, 8*mib, mib)
		w.stop()
		x.stop()
		now := u.measure("", "/docker", box)
		for _, g := range []string{box, "/docker", ""} {
			u.checkBooked(now, g, append([]usage.Resource{usage.CPU}, diskResources...)...)
		}
		u.checkLevel(now, box)
		u.checkLevel(now, "/docker", box)
		checkTasks(u, now, box)
		if got := u.booked[u.path+box].Amount[usage.DiskWritten]; got != 3*mib {
			u.t.Errorf("booked %d bytes written, want %d", got, 3*mib)
		}
		for p := range u.booked {
			if strings.HasPrefix(p, u.path+box+"/") {
				u.t.Errorf("%s has a row of its own", p)
			}
		}
		// A group of the user ends; what it used stays the container's.
		w.resume()
		w.do("burn 10")
		w.end()
		u.remove(box + "/init/deep")
		u.remove(box + "/init")
		now = u.measure(box)
		u.checkBooked(now, box, append([]usage.Resource{usage.CPU}, diskResources...)...)
		u.checkLevel(now, box)
		u.checkQuality([]string{box}, usage.CPU, usage.Memory, usage.DiskWritten)
	})
}

// The time in which a limit held tasks back is that of the group that has the limit.
func TestUnifiedThrottled(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		u.group("/a", "cpu")
		u.group("/a/b")
		put(u.t, u.dir("/a/b/cpu.max"), "5000 20000")
		w := startWorker(u.t, u.dir("/a/b"))
		u.tick()
		testkit.Eventually(u.t, "the group is throttled", func() bool {
			w.do("burn 20")
			return u.counters("/a/b")[usage.CPUThrottled] > 0
		})
		w.stop()
		now := u.measure("/a/b")
		g := u.reading("/a/b")
		if g.CPULimit != 250e6 {
			u.t.Errorf("limit %d ns a second, want 250 ms", g.CPULimit)
		}
		for _, r := range []usage.Resource{usage.CPUThrottled, usage.CPUPeriods, usage.CPUThrottledPeriods} {
			now["/a/b"].within(u.t, "/a/b", r, g.Value[r])
		}
		u.checkBooked(now, "/a/b", usage.CPU)
		if b := u.booked[u.path+"/a/b"]; b.Amount[usage.CPUThrottled] == 0 || b.Amount[usage.CPUThrottledPeriods] == 0 || b.Amount[usage.CPUPeriods] < b.Amount[usage.CPUThrottledPeriods] || b.Amount[usage.CPUUser]+b.Amount[usage.CPUSystem] != b.Amount[usage.CPU] {
			u.t.Errorf("booked %+v", b)
		}
	})
}

// Controllers may be disabled for groups and enabled again while these are measured: their counters
// begin again, and nothing is lost or counted twice.
func TestUnifiedControllers(t *testing.T) {
	unified(t, func(u *unifiedMachine) {
		disk := u.disk()
		u.group("/a")
		u.group("/a/b")
		w := startWorker(u.t, u.dir("/a/b"))
		write := func(n int) { w.do("direct-write %s 0 %d", disk, n*mib) }
		u.tick()
		write(1)
		u.tick()
		for range 2 {
			put(u.t, u.dir("/a/cgroup.subtree_control"), "+io +memory +pids")
			write(2)
			w.do("anon %d", 4*mib)
			w.stop()
			now := u.measure("/a", "/a/b")
			u.checkBooked(now, "/a", diskResources...)
			u.checkLevel(now, "/a", "/a/b")
			u.checkLevel(now, "/a/b")
			w.resume()
			write(3)
			now = u.measure("/a", "/a/b")
			u.checkBooked(now, "/a", diskResources...)
			write(4)
			put(u.t, u.dir("/a/cgroup.subtree_control"), "-io -memory -pids")
			write(5)
			w.stop()
			now = u.measure("/a")
			u.checkBooked(now, "/a", usage.DiskRead, usage.DiskWritten)
			testkit.Eventually(u.t, "the kernel has ended the controllers of the group", func() bool {
				now = u.measure("/a")
				return !u.reading("/a/b").Has.Has(usage.Memory) && !u.reading("/a/b").Has.Has(usage.PIDs)
			})
			u.checkLevel(now, "/a")
			checkTasks(u, now, "/a")
			w.resume()
		}
	})
}
