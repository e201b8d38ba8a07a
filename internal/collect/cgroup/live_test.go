package cgroup_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Both readers agree on idle groups: their processes are in other groups during the
// reading, so that no counter changes.
func TestReadersAgree(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	p := top(t)
	var loads []*load
	var paths []string
	for i := range 4 {
		g := fmt.Sprintf("%s/g%d", p, i)
		mkdir(t, in(g)...)
		loads, paths = append(loads, newLoad(t, in(g)...)), append(paths, g)
		loads[i].do(fmt.Sprintf("%d MB", i+1))
		loads[i].leave()
	}
	byBPF, byFiles := openFixture(t, "bpf", config(), bpf.Default()), openFixture(t, "files", config(), bpf.Default())
	for range 3 {
		for i, l := range loads {
			l.enter(in(paths[i])...)
			l.do(fmt.Sprintf("%dms", 5+i))
			l.leave()
		}
		// The kernel charges memory ahead, and may undo that at any time for an idle group:
		// so read by files between two readings by bpf.
		byBPF.tick()
		first := map[string]int64{}
		for _, g := range append(paths, p) {
			if a := byBPF.group(g); a != nil {
				first[g] = a.Value[usage.Memory]
			}
		}
		byFiles.tick()
		byBPF.tick()
		for _, g := range append(paths, p) {
			a, b := byBPF.group(g), byFiles.group(g)
			if a == nil || b == nil {
				t.Fatalf("%s: not found", g)
			}
			for _, r := range []usage.Resource{usage.CPU, usage.Memory} {
				if !a.Has.Has(r) || !b.Has.Has(r) {
					t.Errorf("%s: %v: absent", g, r)
				}
			}
			if off := a.Value[usage.CPU] - b.Value[usage.CPU]; off > 1000 || off < -1000 {
				t.Errorf("%s: cpu %d by bpf, %d by files", g, a.Value[usage.CPU], b.Value[usage.CPU])
			}
			from, to := first[g], a.Value[usage.Memory]
			if v := b.Value[usage.Memory]; v < min(from, to) || v > max(from, to) {
				t.Errorf("%s: memory %d by files, %d before and %d after it by bpf", g, v, from, to)
			}
			if byBPF.booked[g] != byFiles.booked[g] {
				t.Errorf("%s: booked %d ns by bpf, %d by files", g, byBPF.booked[g], byFiles.booked[g])
			}
		}
	}
}

// Groups that live between two ticks, nested and repeatedly under the same path: by BPF
// each has the value of its own counter, by files their common parent has it. Use before
// the first tick is not booked.
func TestLives(t *testing.T) {
	hosttest.LockShared(t, "cut-paths")
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		past := newLoad(t, in(p)...)
		past.do("20ms")
		past.end()
		before := usageOf(t, p)
		s := open(config())
		want := map[string]int64{}
		want[p+"/a"] = life(t, p+"/a", "5ms")
		s.tick()
		want[p+"/b"] = life(t, p+"/b", "3ms") + life(t, p+"/b", "6ms") + life(t, p+"/b", "2ms")
		mkdir(t, in(p+"/c")...)
		want[p+"/c/d"] = life(t, p+"/c/d", "4ms")
		stays := newLoad(t, in(p+"/c")...)
		stays.do("3ms")
		s.rest(stays)
		stays.do("5ms")
		mkdir(t, in(p+"/c/e")...)
		s.rest(stays)
		stays.end()
		want[p+"/c"] = usageOf(t, p+"/c") - want[p+"/c/d"]
		rmdir(t, in(p+"/c/e")...)
		rmdir(t, in(p+"/c")...)
		want[p+"/c"] += life(t, p+"/c", "2ms")
		s.tick()
		s.tick()
		all := usageOf(t, p) - before
		if got := s.below(p); differ(got, all) {
			t.Errorf("booked %d ns below %s, its counter gained %d", got, p, all)
		}
		if s.table.ByName() {
			for g, ns := range want {
				if differ(s.booked[g], ns) {
					t.Errorf("%s: booked %d ns, its counter shows %d", g, s.booked[g], ns)
				}
			}
		}
		if s.lost > 0 {
			t.Errorf("%d births or deaths lost", s.lost)
		}
	})
}

// Groups that are born, live or end in ticks that are not booked are booked by name at the
// next one.
func TestTicksNotBooked(t *testing.T) {
	hosttest.LockShared(t, "cut-paths")
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		s := open(config())
		mkdir(t, in(p+"/old")...)
		s.tick()
		want := map[string]int64{p + "/old": work(t, p+"/old", "3ms")}
		mkdir(t, in(p+"/new")...)
		work(t, p+"/new", "2ms")
		want[p+"/short"] = life(t, p+"/short", "4ms")
		s.failedTick()
		want[p+"/new"] = work(t, p+"/new", "3ms")
		rmdir(t, in(p+"/old")...)
		s.failedTick()
		s.failedTick()
		s.tick()
		s.tick()
		for g, ns := range want {
			if differ(s.booked[g], ns) && (s.table.ByName() || g == p+"/new") {
				t.Errorf("%s: booked %d ns, its counter shows %d", g, s.booked[g], ns)
			}
			if q := s.used[p].Quality.Get(usage.CPU); q != usage.Measured && s.table.ByName() {
				t.Errorf("the CPU time of the group above is %v", q)
			}
		}
		if got, all := s.below(p), usageOf(t, p); differ(got, all) {
			t.Errorf("booked %d ns below %s, its counter shows %d", got, p, all)
		}
		rmdir(t, in(p+"/new")...)
		for range 5 {
			s.tick()
		}
		if k := s.table.Entries(p); k > 0 || s.table.SlotsLost() != 0 {
			t.Errorf("%d entries remain of removed groups; %d slots lost", k, s.table.SlotsLost())
		}
	})
}

// The use of groups inside a container counts for the container.
func TestFolding(t *testing.T) {
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		s := open(config())
		box := p + "/docker/" + hosttest.ContainerID(t)
		mkdir(t, in(p+"/docker")...)
		mkdir(t, in(box)...)
		for range 2 {
			life(t, box+"/inner", "4ms")
			s.tick()
		}
		mkdir(t, in(box+"/inner")...)
		l := newLoad(t, in(box+"/inner")...)
		l.do("3ms")
		s.rest(l)
		l.do("3ms")
		l.end()
		s.tick()
		if got, want := s.booked[box], usageOf(t, box); differ(got, want) || s.rows[box+"/inner"] > 0 {
			t.Errorf("booked %d ns to the container, %d rows for the group in it; want %d and none", got, s.rows[box+"/inner"], want)
		}
		if g := s.group(box); g == nil || g.Workload.Kind != workload.Container {
			t.Errorf("%s: %+v", box, g)
		}
		// Everything ends at once, and another container begins.
		rmdir(t, in(box+"/inner")...)
		rmdir(t, in(box)...)
		again := life(t, box, "4ms")
		all := usageOf(t, p)
		s.tick()
		s.tick()
		if got := s.below(p); differ(got, all) {
			t.Errorf("booked %d ns below %s, want %d", got, p, all)
		}
		if s.table.ByName() && differ(s.booked[box], all) {
			t.Errorf("booked %d ns to both lives of the container, want %d, the second %d", s.booked[box], all, again)
		}
	})
}

// A job of mete run has its groups below those of the caller, at different depths in each
// hierarchy, and is one workload.
func TestKeyedWorkloadDepths(t *testing.T) {
	const id = "mete-run-01k5x3v7qz8r9s0t1v2w3x4y5z"
	for _, order := range []string{"cpu first", "memory first", "memory a tick later", "cpu a tick later"} {
		t.Run(order, func(t *testing.T) {
			both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
				p := top(t)
				deep := p + "/x/y"
				mkdir(t, memoryMount+p+"/x", memoryMount+deep)
				cpuPath, memoryPath := p+"/"+id, deep+"/"+id
				dirs := []string{cpuMount + cpuPath, memoryMount + memoryPath}
				if strings.HasPrefix(order, "memory first") || strings.HasPrefix(order, "cpu a") {
					dirs[0], dirs[1] = dirs[1], dirs[0]
				}
				s := open(config())
				mkdir(t, dirs[0])
				if strings.HasSuffix(order, "later") {
					s.tick()
				}
				mkdir(t, dirs[1])
				l := newLoad(t, dirs...)
				l.do("4 MB")
				l.do("10ms")
				s.rest(l)
				l.do("5ms")
				l.stop()
				l.enter(cpuMount) // its memory charge remains
				// The kernel may undo a CPU's memory charged ahead at any time.
				charged := func() [2]int64 {
					return [2]int64{number(t, memoryMount+deep+"/memory.usage_in_bytes"), number(t, memoryMount+memoryPath+"/memory.usage_in_bytes")}
				}
				var held [2]int64
				testkit.Eventually(t, "memory does not change while it is read", func() bool {
					held = charged()
					s.tick()
					return held == charged()
				})
				var job []*usage.Group
				for _, g := range s.snap.Groups {
					if g.Workload.Kind == workload.Job && strings.HasPrefix(g.Workload.Path, p+"/") {
						job = append(job, g)
					}
				}
				if len(job) != 1 || !job[0].Has.Has(usage.CPU) || !job[0].Has.Has(usage.Memory) {
					t.Fatalf("%d rows for the job: %+v", len(job), job)
				}
				cpu, mem := int64(0), int64(0)
				for _, q := range []string{cpuPath, memoryPath} {
					cpu, mem = cpu+s.booked[q], mem+s.level[q]
				}
				if want := usageOf(t, cpuPath); cpu != want {
					t.Errorf("booked %d ns, its counter shows %d", cpu, want)
				}
				whole := held[1]
				if mem != whole || whole < 4<<20 {
					t.Errorf("holds %d bytes, its counter shows %d", mem, whole)
				}
				if want := held[0] - whole; s.level[deep] != want {
					t.Errorf("the memory parent of the job has %d bytes of its own, want %d", s.level[deep], want)
				}
				if err := l.cmd.Process.Signal(unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				l.end()
				rmdir(t, dirs...)
				s.tick()
				s.tick()
				if got, want := s.below(p), usageOf(t, p); got != want {
					t.Errorf("booked %d ns below %s, want %d", got, p, want)
				}
			})
		})
	}
}

// A group that is renamed, with a group below it, gets its new path at once, and nothing is
// booked twice or lost.
func TestRenamed(t *testing.T) {
	hosttest.LockShared(t, "cut-paths")
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		s := open(config())
		mkdir(t, in(p+"/old")...)
		mkdir(t, in(p+"/old/sub")...)
		want := map[string]int64{p + "/old": work(t, p+"/old", "3ms"), p + "/old/sub": work(t, p+"/old/sub", "2ms")}
		s.tick()
		before := map[string]int64{"": usageOf(t, p+"/old"), "/sub": usageOf(t, p+"/old/sub")}
		for _, m := range mounts {
			if err := os.Rename(m+p+"/old", m+p+"/new"); err != nil {
				t.Fatal(err)
			}
		}
		s.tick()
		for _, g := range []string{"", "/sub"} {
			if s.group(p+"/old"+g) != nil || s.group(p+"/new"+g) == nil || !s.group(p+"/new"+g).Has.Has(usage.Memory) {
				t.Errorf("after the renaming: %+v, %+v", s.group(p+"/old"+g), s.group(p+"/new"+g))
			}
		}
		mkdir(t, in(p+"/new/sub/more")...) // births below it are still reported
		s.tick()
		if s.group(p+"/new/sub/more") == nil {
			t.Error("a group below the renamed one was not found")
		}
		rmdir(t, in(p+"/new/sub/more")...)
		work(t, p+"/new/sub", "4ms")
		work(t, p+"/new", "3ms")
		s.tick()
		want[p+"/new/sub"] = usageOf(t, p+"/new/sub") - before["/sub"]
		want[p+"/new"] = usageOf(t, p+"/new") - before[""] - want[p+"/new/sub"]
		if s.table.ByName() { // and so are ends
			mkdir(t, in(p+"/new/sub/short")...)
			want[p+"/new/sub/short"] = work(t, p+"/new/sub/short", "2ms")
			rmdir(t, in(p+"/new/sub/short")...)
			last := usageOf(t, p+"/new/sub")
			want[p+"/new/sub"] += work(t, p+"/new/sub", "2ms") - last
		}
		rmdir(t, in(p+"/new/sub")...)
		rmdir(t, in(p+"/new")...)
		s.tick()
		for g, ns := range want {
			if s.booked[g] != ns {
				t.Errorf("%s: booked %d ns, its counter gained %d", g, s.booked[g], ns)
			}
		}
		if got, all := s.below(p), usageOf(t, p); got != all {
			t.Errorf("booked %d ns below %s, its counter shows %d", got, p, all)
		}
		for range 5 {
			s.tick()
		}
		if k := s.table.Entries(p); k > 0 || s.table.SlotsLost() != 0 || s.lost > 0 {
			t.Errorf("%d entries remain of removed groups; %d slots lost, %d events lost", k, s.table.SlotsLost(), s.lost)
		}
	})
}

// Processes started before and after a renaming count for the old and for the new path.
func TestRenamedProcesses(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	p := top(t)
	s := openFixture(t, "bpf", config(), bpf.Default())
	mkdir(t, in(p+"/old")...)
	l := newLoad(t)
	l.do("fork 1") // before its first process the Go runtime starts another
	l.enter(in(p + "/old")...)
	l.do("fork 3")
	s.tick()
	for _, m := range mounts {
		if err := os.Rename(m+p+"/old", m+p+"/new"); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		s.tick()
	}
	l.do("fork 2")
	s.tick()
	for g, want := range map[string]int64{p + "/old": 3, p + "/new": 2} {
		if got := s.used[g].Amount[usage.Processes]; got != want {
			t.Errorf("%s: booked %d processes, want %d", g, got, want)
		}
	}
}

// A group may leave one hierarchy before the other, and be created again in only one.
func TestHierarchiesDiverge(t *testing.T) {
	hosttest.LockShared(t, "cut-paths")
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		s := open(config())
		g := p + "/g"
		mkdir(t, in(g)...)
		l := newLoad(t, cpuMount+g)
		l.do("4ms")
		s.rest(l)
		if !s.group(g).Has.Has(usage.Memory) {
			t.Error("no memory while it is in both hierarchies")
		}
		// Memory first.
		rmdir(t, memoryMount+g)
		l.do("4ms")
		s.rest(l)
		if r := s.group(g); r == nil || r.Has.Has(usage.Memory) || !r.Has.Has(usage.CPU) {
			t.Errorf("without its memory group: %+v", r)
		}
		// Then again with memory.
		mkdir(t, memoryMount+g)
		s.rest(l)
		if !s.group(g).Has.Has(usage.Memory) {
			t.Error("no memory although it is in both hierarchies again")
		}
		// CPU first, with a group below it left in memory.
		l.end()
		mkdir(t, memoryMount+g+"/left")
		s.tick()
		rmdir(t, cpuMount+g)
		s.tick()
		if r := s.group(g); r != nil {
			t.Errorf("an ended group is still in the snapshot: %+v", r)
		}
		s.tick()
		mkdir(t, memoryMount+g+"/left/more")
		other := life(t, p+"/other", "3ms")
		s.tick()
		mkdir(t, cpuMount+g) // memory existed all the time
		l = newLoad(t, cpuMount+g)
		l.do("3ms")
		l.end()
		rmdir(t, cpuMount+g)
		s.tick()
		s.tick()
		if got, want := s.below(p), usageOf(t, p); got != want {
			t.Errorf("booked %d ns below %s, want %d", got, p, want)
		}
		if s.table.ByName() && s.booked[p+"/other"] != other {
			t.Errorf("booked %d ns to another group, want %d", s.booked[p+"/other"], other)
		}
		if s.lost > 0 {
			t.Errorf("%d births or deaths lost", s.lost)
		}
	})
}

// After more births and deaths than the ring holds, the loss is counted, a search finds the
// existing groups, and missed use counts for the parent.
func TestRingOverflow(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	p := top(t)
	kernel := bpf.Default()
	kernel.Ring = os.Getpagesize()
	s := openFixture(t, "bpf", config(), kernel)
	for round := range 2 {
		for i := range 60 {
			g := fmt.Sprintf("%s/g%d", p, i)
			if i%20 == 0 {
				life(t, g, "2ms")
			}
			mkdir(t, in(g)...)
		}
		for i := range 30 {
			rmdir(t, in(fmt.Sprintf("%s/g%d", p, i))...)
		}
		s.tick()
		if s.lost == 0 {
			t.Fatal("180 events fit into a ring of one page")
		}
		s.tick()
		for i := range 60 {
			g := fmt.Sprintf("%s/g%d", p, i)
			if found := s.group(g) != nil; found != (i >= 30) {
				t.Errorf("round %d: %s found: %t", round, g, found)
			}
		}
		l := newLoad(t, in(p+"/g45")...)
		l.do("5ms")
		l.end()
		s.tick()
		if got, want := s.below(p), usageOf(t, p); got != want {
			t.Errorf("round %d: booked %d ns below %s, want %d", round, got, p, want)
		}
		if got, want := s.booked[p+"/g45"], usageOf(t, p+"/g45"); round == 0 && got != want {
			t.Errorf("booked %d ns to a group that the search found, want %d", got, want)
		}
		for i := range 30 {
			rmdir(t, in(fmt.Sprintf("%s/g%d", p, 30+i))...)
		}
		for range 5 {
			s.tick()
		}
		if k := s.table.Entries(p); k > 0 {
			t.Errorf("round %d: %d entries remain of removed groups", round, k)
		}
	}
}

// With few descriptors the busiest groups keep theirs, and all groups are still read.
func TestFewDescriptors(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1")
	p := top(t)
	cfg := config()
	var loads []*load
	for i := range 6 {
		g := fmt.Sprintf("%s/g%d", p, i)
		mkdir(t, in(g)...)
		loads = append(loads, newLoad(t, in(g)...))
		loads[i].do("0s") // it has started
	}
	cfg.Files = 7 // for the root, the parent of all, and one more
	s := openFixture(t, "files", cfg, bpf.Default())
	before := s.group(p).Value[usage.CPU]
	for range 7 {
		loads[4].do("20ms")
		loads[5].do("1ms")
		s.tick()
		sum := 0
		for _, k := range s.table.Kept() {
			sum += k
		}
		if sum > cfg.Files {
			t.Fatalf("%d descriptors kept, at most %d", sum, cfg.Files)
		}
	}
	kept := s.table.Kept()
	for i := range loads {
		if g := fmt.Sprintf("%s/g%d", p, i); len(kept) == 0 || kept[g] > kept[p+"/g4"] {
			t.Errorf("%s keeps more than the busiest: %v", g, kept)
		}
	}
	for _, l := range loads {
		l.end()
	}
	s.tick()
	if got, want := s.below(p), usageOf(t, p)-before; got != want {
		t.Errorf("booked %d ns below %s, want %d", got, p, want)
	}
}

// Without directory events the table searches for groups once a window. The use of a group
// before it was found stays in its parent, and nothing is booked twice.
func TestWithoutEvents(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1")
	p := top(t)
	s := openFixture(t, "files", config(), bpf.Default())
	s.table.Blind()
	s.tick()
	before := usageOf(t, p)
	g := p + "/g"
	mkdir(t, in(g)...)
	l := newLoad(t, in(g)...)
	found := 0
	for i := range 8 {
		l.do("4ms")
		if i%2 == 0 {
			life(t, p+"/short", "2ms")
		}
		s.tick()
		if s.group(g) != nil {
			found++
		}
	}
	if found < 4 || found == 8 {
		t.Errorf("found in %d ticks of 8, want most but not all", found)
	}
	l.end()
	s.tick()
	all := usageOf(t, p) - before
	if got := s.below(p); got != all {
		t.Errorf("booked %d ns below %s, want %d", got, p, all)
	}
	if own := s.booked[g]; own <= 0 || own >= usageOf(t, g) {
		t.Errorf("booked %d of its %d ns to a group found late", own, usageOf(t, g))
	}
	rmdir(t, in(g)...)
	for range 4 {
		s.tick()
	}
	if s.group(g) != nil {
		t.Error("a removed group is still in the snapshot")
	}
}

// While groups come and go during readings, no entry remains of them and nothing of their
// use is lost.
func TestChurn(t *testing.T) { churn(t) }

// On a machine that does nothing else, no birth or death is missed either: a reading comes before the next
// group of the same name, and before the kernel's buffer, which all groups of the machine share, is full.
func TestChurnMissesNothing(t *testing.T) {
	testkit.Stage(t, "timing", "each reading has to be in time")
	for reader, lost := range churn(t) {
		if lost > 0 {
			t.Errorf("%s: %d births or deaths lost", reader, lost)
		}
	}
}

// churn returns the births and deaths that were lost, by test.
func churn(t *testing.T) map[string]int64 {
	lost := map[string]int64{}
	hosttest.LockShared(t, "cut-paths")
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		s := open(config())
		before := usageOf(t, p)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 100 {
				g := fmt.Sprintf("%s/g%d", p, i%7)
				if os.Mkdir(memoryMount+g, 0o755) != nil || os.Mkdir(cpuMount+g, 0o755) != nil {
					continue // its process was still there the last time
				}
				if i%3 == 0 {
					for _, d := range in(g + "/docker") {
						_ = os.Mkdir(d, 0o755)
						_ = os.Remove(d)
					}
				}
				if i%20 == 0 {
					l := newLoad(t, in(g)...)
					l.do("1ms")
					l.end()
				}
				rmdir(t, in(g)...)
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			s.tick()
		}
		for range 5 {
			s.tick()
		}
		if got, want := s.below(p), usageOf(t, p)-before; got != want {
			t.Errorf("booked %d ns below %s, want %d", got, p, want)
		}
		lost[t.Name()] = s.lost
		if k := s.table.Entries(p); k > 0 || s.table.SlotsLost() != 0 {
			t.Errorf("%d entries remain of removed groups; %d slots lost", k, s.table.SlotsLost())
		}
	})
	return lost
}
