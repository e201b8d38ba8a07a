package attribute_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A forest is a tree of groups that a source observes badly: some late, some not in every tick,
// some without their end.
type forest struct {
	t      *rapid.T
	groups []*tree // the root first, parents before children
	lives  uint64
	slots  []usage.Slot // free
	top    usage.Slot
	now    int64
	used   map[string]int64
	blurry map[string]bool // their use cannot be fully attributed
	calm   bool            // no group is found late in this step
	plain  bool            // every group is readable
}

type tree struct {
	name   string
	life   uint64
	parent *tree
	slot   usage.Slot
	cpu    int64 // including descendants, ended ones too
	disk   int64 // as CPU
	forks  int64 // own
	mem    int64 // present level, own
	hidden int   // ticks until the source finds it; 0 if found
	shown  bool  // in the previous snapshot
	found  int64 // when the source found it late
	born   bool
	dead   bool
	silent bool // its end is not shown
	nap    int  // ticks of inactivity left
}

func (f *forest) add(parent *tree, hidden int, born bool) *tree {
	f.lives++
	g := &tree{name: fmt.Sprintf("g%d", f.lives), life: f.lives, parent: parent, hidden: hidden, born: born}
	if k := len(f.slots); k > 0 {
		g.slot, f.slots = f.slots[k-1], f.slots[:k-1]
	} else {
		g.slot = f.top
		f.top++
	}
	f.groups = append(f.groups, g)
	return g
}

// seen returns the nearest group above g that the source has found.
func (g *tree) seen() *tree {
	p := g.parent
	for p.hidden > 0 {
		p = p.parent
	}
	return p
}

func (f *forest) blur(g *tree) {
	for ; g != nil; g = g.parent {
		f.blurry[g.name] = true
	}
}

func (f *forest) use(g *tree, ns int64) {
	f.used[g.name] += ns
	g.forks += ns % 7
	for ; g != nil; g = g.parent {
		g.cpu += ns
		g.disk += ns / 3
	}
}

func (f *forest) step() {
	t := f.t
	f.now += 1e9
	for range rapid.IntRange(0, 3).Draw(t, "births") {
		p := f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")]
		if !p.dead && len(f.groups) < 16 {
			late := max(0, rapid.IntRange(-3, 3).Draw(t, "late"))
			if f.calm {
				late = 0
			}
			f.add(p, late, late == 0)
		}
	}
	for _, g := range f.groups {
		if g.nap--; g.nap >= 0 {
			continue
		}
		g.nap = max(0, rapid.IntRange(-6, 8).Draw(t, "naps"))
		f.use(g, max(0, rapid.Int64Range(-1e6, 1e6).Draw(t, "cpu")))
		if rapid.IntRange(0, 3).Draw(t, "allocates") == 0 {
			g.mem = rapid.Int64Range(0, 1<<20).Draw(t, "mem")
		}
		leaf := !slices.ContainsFunc(f.groups, func(c *tree) bool { return c.parent == g })
		if leaf && g.parent != nil && rapid.IntRange(0, 5).Draw(t, "dies") == 0 {
			g.dead, g.silent = true, rapid.IntRange(0, 2).Draw(t, "unseen") == 0
			if g.silent {
				f.blur(g)
			}
		}
	}
}

func (f *forest) snapshot() *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", At: f.now, Mono: f.now, Node: usage.Node{CPUs: 4, MemTotal: 1 << 30, MemFree: 1 << 29}}
	kept := f.groups[:0]
	for _, g := range f.groups {
		found := g.hidden == 1 && !f.calm
		if g.hidden > 0 && !f.calm {
			g.hidden--
		}
		if found {
			g.found = f.now
		}
		if g.dead && (g.silent || g.hidden > 0) {
			f.blur(g)
			f.slots = append(f.slots, g.slot)
			continue
		}
		if g.hidden > 0 {
			f.blur(g)
			kept = append(kept, g)
			continue
		}
		r := &usage.Group{Slot: g.slot, Parent: usage.NoSlot, New: !g.shown, Born: !g.shown && g.born && !found,
			Life: workload.Life{ID: g.life}, Workload: workload.Workload{ID: workload.ID(g.name), Name: g.name}, Final: g.dead, Exact: true}
		if g.parent != nil {
			r.Parent = g.seen().slot
			r.MemoryParent = r.Parent
		}
		// An unreadable file; the root has another source.
		if !f.plain && g.parent != nil && g.shown && g.nap <= 0 && rapid.IntRange(0, 5).Draw(f.t, "unreadable") == 0 {
			f.blur(g)
		} else {
			r.Put(usage.CPU, g.cpu)
		}
		if g.parent != nil {
			if g.nap > 0 || rapid.IntRange(0, 9).Draw(f.t, "no disk") > 0 {
				r.Put(usage.DiskWritten, g.disk)
			}
			mem := int64(0)
			for _, c := range f.groups {
				for up := c; up != nil; up = up.parent {
					if up == g {
						mem += c.mem
					}
				}
			}
			r.Put(usage.Memory, mem)
			r.Put(usage.Processes, g.forks)
		}
		// Below a group that was just found nothing is known to be new.
		if found || !g.shown && g.parent != nil && g.seen().found == f.now {
			g.found = f.now
			f.blur(g)
		}
		g.shown = true
		s.Groups = append(s.Groups, r)
		if g.dead {
			f.slots = append(f.slots, g.slot)
			continue
		}
		kept = append(kept, g)
	}
	f.groups = kept
	return s
}

// TestAccountsBookOnce checks that use is booked once however badly groups are observed: in every
// tick the parts sum to the growth of the root's counter, and groups that were observed well, with
// all descendants, have exactly their own use.
func TestAccountsBookOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}
		root := f.add(nil, 0, false)
		f.use(root, 1e12)
		for range rapid.IntRange(0, 5).Draw(t, "groups") {
			g := f.add(f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")], 0, false)
			f.use(g, rapid.Int64Range(0, 1e12).Draw(t, "past"))
		}
		acc := attribute.New("n")
		acc.Tick(f.snapshot())
		clear(f.used)
		clear(f.blurry)
		var w usage.Window
		booked := map[string]int64{}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			before := root.cpu
			f.step()
			bal := acc.Tick(f.snapshot())
			if got, want := bal.Workloads[0]+bal.System[0], root.cpu-before; got != want {
				t.Fatalf("booked %d ns in a tick, the root's counter gained %d", got, want)
			}
			acc.CloseWindow(&w)
			if w.Balance.Violations != 0 {
				t.Fatalf("%d violations", w.Balance.Violations)
			}
			for _, r := range w.Rows {
				booked[r.Workload.Name] += r.Usage.Amount[usage.CPU]
			}
		}
		for name, want := range f.used {
			if !f.blurry[name] && booked[name] != want {
				t.Errorf("%s: booked %d ns, used %d", name, booked[name], want)
			}
		}
	})
}

// two returns a snapshot of a root, a group below it and one below that.
func two(at int64, cpu ...int64) *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", At: at, Mono: at, Node: usage.Node{CPUs: 2, MemTotal: 1 << 40, MemFree: 1 << 39}}
	for i, v := range cpu {
		g := &usage.Group{Slot: usage.Slot(i), Parent: usage.Slot(i - 1), MemoryParent: usage.Slot(i - 1), Life: workload.Life{ID: uint64(i + 1)},
			Workload: workload.Workload{ID: workload.ID(fmt.Sprint(i)), Name: fmt.Sprint(i)}}
		g.Put(usage.CPU, v)
		s.Groups = append(s.Groups, g)
	}
	return s
}

func shares(acc *attribute.Accounts, r usage.Resource) (out []int64) {
	var w usage.Window
	acc.CloseWindow(&w)
	for _, row := range slices.Backward(w.Rows[:len(w.Rows)-1]) {
		out = append(out, row.Usage.Amount[r])
	}
	return out
}

// TestAccountsCounterRestarts checks counters that are reset by writing to cpuacct.usage or
// blkio.reset_stats: use after the reset counts.
func TestAccountsCounterRestarts(t *testing.T) {
	acc := attribute.New("n")
	acc.Tick(two(1e9, 9000, 5000, 2000))
	for i, c := range []struct{ cpu, want []int64 }{
		{[]int64{9100, 5050, 2010}, []int64{50, 40, 10}},
		{[]int64{9200, 70, 2030}, []int64{30, 50, 20}}, // the middle one's
		{[]int64{9300, 150, 2070}, []int64{20, 40, 40}},
		{[]int64{9400, 230, 30}, []int64{20, 50, 30}}, // the lower one's
		{[]int64{9500, 310, 90}, []int64{20, 20, 60}},
	} {
		acc.Tick(two(int64(i+2)*1e9, c.cpu...))
		if got := shares(acc, usage.CPU); !slices.Equal(got, c.want) {
			t.Errorf("tick %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestAccountsRestartUnread checks a counter that restarts while it is unreadable: its use in between
// is booked to the group above, and from the next reading on it counts.
func TestAccountsRestartUnread(t *testing.T) {
	acc := attribute.New("n")
	acc.Tick(two(1e9, 9000, 5000, 2000))
	for i, c := range []struct{ cpu, want []int64 }{
		{[]int64{9100, 5050, 2010}, []int64{50, 40, 10}},
		{[]int64{9200, 5150, -1}, []int64{0, 100, 0}},
		{[]int64{9300, 5250, 30}, []int64{0, 100, 0}},
		{[]int64{9400, 5350, 90}, []int64{0, 40, 60}},
	} {
		s := two(int64(i+2)*1e9, c.cpu...)
		if c.cpu[2] < 0 {
			s.Groups[2].Reading = usage.Reading{}
		}
		acc.Tick(s)
		if got := shares(acc, usage.CPU); !slices.Equal(got, c.want) {
			t.Errorf("tick %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestAccountsCounterDips checks that a small decrease is a correction by the kernel, not a new
// life.
func TestAccountsCounterDips(t *testing.T) {
	acc := attribute.New("n")
	acc.Tick(two(1e9, 9000, 5000, 2000))
	for i, c := range []struct{ cpu, want []int64 }{
		{[]int64{9100, 5050, 2010}, []int64{50, 40, 10}},
		{[]int64{9200, 5100, 2005}, []int64{50, 55, 0}},
		{[]int64{9300, 5100, 2020}, []int64{100, 0, 10}},
		{[]int64{8290, 4090, 1010}, []int64{0, 0, 0}},  // half of it is a dip
		{[]int64{8794, 4594, 504}, []int64{0, 0, 504}}, // less than half is not
	} {
		acc.Tick(two(int64(i+2)*1e9, c.cpu...))
		if got := shares(acc, usage.CPU); !slices.Equal(got, c.want) {
			t.Errorf("tick %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestAccountsMemoryElsewhere checks that a job whose memory is charged below another group than
// its CPU time has one row with both, and that no group above is booked its memory too, even if
// that becomes known late.
func TestAccountsMemoryElsewhere(t *testing.T) {
	for _, late := range []bool{false, true} {
		acc := attribute.New("n")
		snapshot := func(at int64, memory bool) *usage.Snapshot {
			s := two(at, 100*at, 10*at, 20*at)
			job, box := s.Groups[1], s.Groups[2]
			box.Parent, box.MemoryParent = 0, 0
			box.Put(usage.Memory, 3000)
			if memory {
				job.Put(usage.Memory, 1000)
				job.MemoryParent = 2
			}
			return s
		}
		acc.Tick(snapshot(1e9, !late))
		acc.Tick(snapshot(2e9, !late))
		var w usage.Window
		acc.CloseWindow(&w)
		acc.Tick(snapshot(3e9, true))
		acc.Tick(snapshot(4e9, true))
		m := acc.Live()
		for _, r := range m.Rows {
			want := map[string]int64{"1": 1000, "2": 2000}[r.Name]
			if want > 0 && (r.Memory == nil || *r.Memory != want) {
				t.Errorf("late %t: %s holds %v bytes, want %d", late, r.Name, r.Memory, want)
			}
		}
		if cpu := shares(acc, usage.CPU); cpu[1] != 20e9 {
			t.Errorf("late %t: booked %v ns to the job, want 20e9", late, cpu[1])
		}
	}
}

// TestAccountsLevelEnds checks that levels end with their group.
func TestAccountsLevelEnds(t *testing.T) {
	acc := attribute.New("n")
	snapshot := func(at, upper, lower int64, final bool) *usage.Snapshot {
		s := two(at, 0, 0, 0)
		s.Groups[1].Put(usage.Memory, upper)
		s.Groups[2].Put(usage.Memory, lower)
		s.Groups[2].Final = final
		return s
	}
	acc.Tick(snapshot(1e9, 5000, 4000, false))
	acc.Tick(snapshot(2e9, 5000, 4000, false))
	if got, want := shares(acc, usage.Memory), []int64{5000, 0, 0}; got[1] != 1000 || got[2] != 4000 {
		t.Errorf("held for a second: %v, want %v", got, want)
	}
	// It ends; its cache remains in the group above.
	acc.Tick(snapshot(3e9, 3000, 4000, true))
	if got := shares(acc, usage.Memory); len(got) != 3 || got[1] != 2000 || got[2] != 2000 {
		t.Errorf("ended within the second: %v, want 2000 for both", got[1:])
	}
}

// TestAccountsLevelEndsUnshown checks that an ended group holds nothing even if its final reading
// lacks the level: the rows still sum to the machine's memory.
func TestAccountsLevelEndsUnshown(t *testing.T) {
	acc := attribute.New("n")
	snapshot := func(at int64) *usage.Snapshot {
		s := two(at, 0, 0)
		s.Node.MemTotal, s.Node.MemFree = 10_000, 3000
		s.Groups[1].Put(usage.Memory, 4000)
		return s
	}
	acc.Tick(snapshot(1e9))
	acc.Tick(snapshot(2e9))
	last := snapshot(3e9)
	last.Groups[1].Final = true
	last.Groups[1].Has &^= usage.SetOf(usage.Memory)
	acc.Tick(last)
	sum := int64(0)
	for _, r := range acc.Live().Rows {
		if r.Memory != nil {
			sum += *r.Memory
		}
	}
	if sum != 10_000 {
		t.Errorf("the rows hold %d bytes, the machine 10000", sum)
	}
	living := 0
	acc.EachLiving(func(w *workload.Workload) {
		if living++; w.ID == last.Groups[1].Workload.ID {
			t.Errorf("%s lives after its end", w.Name)
		}
	})
	if want := len(last.Groups) - 1; living != want {
		t.Errorf("%d workloads live, want %d", living, want)
	}
}

// TestAccountsTotalsDoNotOverflow checks totals beyond an int64: a terabyte held for a year.
func TestAccountsTotalsDoNotOverflow(t *testing.T) {
	acc := attribute.New("n")
	const day = 86400e9
	acc.Tick(two(1e9, 0, 0))
	var w usage.Window
	for i := range int64(365) {
		acc.Tick(two(1e9+(i+1)*day, 0, 0))
		acc.CloseWindow(&w)
	}
	m := acc.Live()
	if got, want := m.Rows[len(m.Rows)-1].Total["memory"], "17337099346771968000"; got != want {
		t.Errorf("idle held %s byte-seconds in a year, want %s", got, want)
	}
	var v recordLog
	v.save(acc, true)
	if again := v.restore(t); !bytes.Equal(again.Checkpoint(nil, true), v.records[0]) {
		t.Error("a total beyond 63 bits is restored as another one")
	}
}

// TestTasksOutside checks that tasks outside all workloads are system's, and none if all are in
// workloads, or if these show more, as they were read later.
func TestTasksOutside(t *testing.T) {
	for _, c := range []struct{ all, within, want int64 }{{10, 7, 3}, {10, 10, 0}, {10, 11, 0}} {
		acc := attribute.New("n")
		for i := range int64(2) {
			s := two((i+1)*second, 0, 0)
			s.Node.Tasks = c.all
			s.Groups[1].Put(usage.PIDs, c.within)
			s.Groups[1].Own = usage.SetOf(usage.PIDs)
			acc.Tick(s)
		}
		if u, ok := acc.Share(0); !ok || u.Amount[usage.PIDs] != c.want || u.Amount[usage.PIDsPeak] != c.want {
			t.Errorf("%d of %d tasks are in workloads: system has %d task-seconds, at most %d, want %d", c.within, c.all, u.Amount[usage.PIDs], u.Amount[usage.PIDsPeak], c.want)
		}
	}
}

// TestTasksShownLate checks that tasks count from the tick that first shows their number as if it had
// been the same before, and that from 0 on they are not known at once.
func TestTasksShownLate(t *testing.T) {
	acc := attribute.New("n")
	for i, c := range []struct{ tasks, want int64 }{{0, 0}, {10, 10}, {20, 15}, {0, 0}, {8, 8}, {1, 4}, {5, 3}, {5, 5}} {
		s := two(int64(i+1)*second, 0, 0)
		s.Node.Tasks = c.tasks
		acc.Tick(s)
		if u, _ := acc.Share(0); u.Amount[usage.PIDs] != c.want || u.Present.Has(usage.PIDs) != (c.tasks > 0) {
			t.Errorf("tick %d: %d task-seconds of %d tasks, want %d", i, u.Amount[usage.PIDs], c.tasks, c.want)
		}
	}
}

// TestStolenTime checks the CPUs that the hypervisor took in the latest tick.
func TestStolenTime(t *testing.T) {
	acc := attribute.New("n")
	for i, steal := range []int64{500e6, 700e6, 1_200e6} {
		s := two(int64(i+1)*second, 0, 0)
		s.Node.Steal = steal
		acc.Tick(s)
	}
	if got := acc.Live().CPU.Steal; got != .5 {
		t.Errorf("%v CPUs, want 0.5", got)
	}
}

// TestAccountsForget checks that groups that come and go leave nothing behind.
func TestAccountsForget(t *testing.T) {
	acc := attribute.New("n")
	var w usage.Window
	at := int64(1e9)
	for i := range uint64(1000) {
		s := two(at, int64(i)*100, int64(i)*50)
		s.Groups[1].Life.ID, s.Groups[1].New, s.Groups[1].Born = 10+i/2, i%2 == 0, true
		s.Groups[1].Final = i%4 == 1 // every other one without a final reading
		acc.Tick(s)
		at += 1e9
		if i%10 == 9 {
			acc.CloseWindow(&w)
			if len(w.Rows) > 12 {
				t.Fatalf("%d rows in a window of 10 ticks", len(w.Rows))
			}
		}
	}
}

// TestAccountsParentUnknown checks that a group whose parent is not shown, or is the group itself, is
// below the root.
func TestAccountsParentUnknown(t *testing.T) {
	for _, parent := range []usage.Slot{1, 2, 3, 1000, usage.NoSlot} {
		acc := attribute.New("n")
		for i := range int64(2) {
			s := two((i+1)*second, i*100, i*40)
			s.Groups[1].MemoryParent = parent
			if parent != usage.NoSlot { // which only the root has
				s.Groups[1].Parent = parent
			}
			s.Groups[1].Put(usage.Memory, 50)
			acc.Tick(s)
		}
		if got := shares(acc, usage.CPU); !slices.Equal(got, []int64{60, 40}) {
			t.Errorf("below %d: %v, want 60 and 40", parent, got)
		}
	}
}

// TestShareOfUnknown checks that a slot without a group, also beyond those of all groups, has no share.
func TestShareOfUnknown(t *testing.T) {
	acc := attribute.New("n")
	s := two(second, 0, 0, 0)
	s.Groups[1].Slot, s.Groups[2].Slot, s.Groups[2].Parent, s.Groups[2].MemoryParent = 2, 3, 2, 2
	acc.Tick(s)
	for slot, want := range []bool{true, false, true, true, false, false} {
		if _, ok := acc.Share(usage.Slot(slot)); ok != want {
			t.Errorf("slot %d has a share: %v, want %v", slot, ok, want)
		}
	}
}

// TestAccountsMemoryBeyond checks that system holds nothing where the groups hold all used memory, or
// more, as it is read later.
func TestAccountsMemoryBeyond(t *testing.T) {
	for held, want := range map[int64]int64{5990: 10, 6000: 0, 6100: 0} {
		acc := attribute.New("n")
		for i := range int64(2) {
			s := two((i+1)*second, 0, 0)
			s.Node.MemTotal, s.Node.MemFree = 10_000, 4000
			s.Groups[1].Put(usage.Memory, held)
			acc.Tick(s)
		}
		u, _ := acc.Share(usage.Root)
		if m := acc.Live(); u.Amount[usage.MemoryPeak] != want || m.Memory.System != want || m.Memory.Workloads != held {
			t.Errorf("%d of 6000 bytes are held: system has %d, shown as %d beside %d; want %d", held, u.Amount[usage.MemoryPeak], m.Memory.System, m.Memory.Workloads, want)
		}
	}
}

// TestAccountsUncertain checks that a group that ended unseen makes the remainder of the nearest group
// above uncertain that is still there, and no other.
func TestAccountsUncertain(t *testing.T) {
	s := newScenario(t)
	top, up, low := namedGroup{name: "top", life: 4, cpu: 600}, namedGroup{name: "up", up: "top", life: 5, cpu: 500}, namedGroup{name: "low", up: "up", life: 6, cpu: 300}
	s.tick(10*second, 1000, top, up, low)
	s.tick(11*second, 1000, top, up, low)
	s.close()
	s.tick(12*second, 1000, top, up)
	s.close()
	for name, q := range map[string]usage.Quality{"up": usage.Apportioned, "top": usage.Measured, "": usage.Measured} {
		s.want(name, usage.CPU, 0, q)
	}
	s.tick(13*second, 1000, top, up, low)
	s.close()
	s.tick(14*second, 1000, top)
	s.close()
	for name, q := range map[string]usage.Quality{"top": usage.Apportioned, "": usage.Measured} {
		s.want(name, usage.CPU, 0, q)
	}
}

// TestAccountsSplit checks that CPU time is divided into user and system time as both grew when they
// last changed, unless one of them fell.
func TestAccountsSplit(t *testing.T) {
	acc := attribute.New("n")
	for i, c := range []struct{ user, system, want int64 }{
		{0, 0, 0},
		{0, 0, 100}, // the kernel showed nothing yet
		{30, 10, 75},
		{35, 10, 100},
		{35, 10, 100},
		{35, 20, 0},
		{30, 25, 0},
		{40, 20, 0},
		{41, 21, 50},
		{41, 22, 0},
	} {
		s := two(int64(i+1)*second, int64(i)*100, int64(i)*100)
		s.Groups[1].Put(usage.CPUUser, c.user)
		s.Groups[1].Put(usage.CPUSystem, c.system)
		acc.Tick(s)
		u, _ := acc.Share(1)
		if got := u.Amount[usage.CPUUser]; got != c.want || i > 0 && u.Amount[usage.CPUSystem] != 100-c.want {
			t.Errorf("tick %d: %d user and %d system, want %d user", i, got, u.Amount[usage.CPUSystem], c.want)
		}
	}
}
