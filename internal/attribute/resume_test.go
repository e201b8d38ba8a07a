package attribute_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A scenario is a machine of a root and named groups, shown to accounts that restart.
type scenario struct {
	t     *testing.T
	acc   *attribute.Accounts
	v     recordLog
	w     usage.Window
	known map[string]bool // shown since the agent started
	slots map[string]usage.Slot
	step  int64 // by how much the wall clock was set, ns

	before  []power.Reading   // of the next tick
	volumes []usage.VolumeUse // the same
}

func newScenario(t *testing.T) *scenario {
	return &scenario{t: t, acc: attribute.New("n"), known: map[string]bool{}, slots: map[string]usage.Slot{}}
}

// A namedGroup is a group of a scenario.
type namedGroup struct {
	name, up string
	life     uint64
	cpu, mem int64
	born     bool
	final    bool
	also     func(*usage.Group)
}

const second = int64(time.Second)

// tick shows the machine at a time, with the root's CPU counter.
func (s *scenario) tick(at, cpu int64, props ...namedGroup) usage.Balance {
	s.t.Helper()
	snap := &usage.Snapshot{Boot: "b", At: at, Mono: at, Offset: 1000*second + s.step, Before: s.before, Volumes: s.volumes}
	snap.Node = usage.Node{CPUs: 4, MemTotal: 10000, MemFree: 4000, Tasks: 100}
	root := namedGroup{name: "", life: 1, cpu: cpu}
	for i, p := range append([]namedGroup{root}, props...) {
		g := &usage.Group{Slot: usage.Slot(i), Life: workload.Life{ID: p.life}, Final: p.final, Exact: p.final,
			Workload: workload.Workload{ID: workload.ID("id of " + p.name), Key: "key of " + p.name, Name: p.name}}
		g.New, g.Born = !s.known[p.name], p.born
		s.known[p.name] = true
		s.slots[p.name] = g.Slot
		if g.Parent = usage.NoSlot; i > 0 {
			g.Parent = s.slots[p.up]
			g.Put(usage.Memory, p.mem)
		}
		g.MemoryParent = g.Parent
		if p.cpu >= 0 {
			g.Put(usage.CPU, p.cpu)
		}
		if p.also != nil {
			p.also(g)
		}
		snap.Groups = append(snap.Groups, g)
	}
	snap.Groups = slices.Grow(snap.Groups, 4)
	return s.show(snap)
}

func (s *scenario) show(snap *usage.Snapshot) usage.Balance {
	s.t.Helper()
	b := s.acc.Tick(snap)
	for _, r := range usage.Wholes {
		if !b.IsBalanced(r) {
			s.t.Errorf("parts of %v do not sum to the whole: %+v", r, b)
		}
	}
	if n := len(snap.Groups); slices.ContainsFunc(snap.Groups[n:cap(snap.Groups)], func(g *usage.Group) bool { return g != nil }) {
		s.t.Error("a tick writes to the groups of its snapshot")
	}
	return b
}

// restart closes the window and continues with accounts restored from a checkpoint.
func (s *scenario) restart() {
	s.t.Helper()
	s.close()
	s.v.save(s.acc, false)
	s.acc = s.v.restore(s.t)
	clear(s.known)
}

func (s *scenario) close() {
	s.t.Helper()
	s.acc.CloseWindow(&s.w)
	if s.w.Balance.Violations > 0 {
		s.t.Errorf("%d violations", s.w.Balance.Violations)
	}
}

func (s *scenario) row(name string) *usage.Row {
	s.t.Helper()
	for i := range s.w.Rows {
		if s.w.Rows[i].Workload.Name == name {
			return &s.w.Rows[i]
		}
	}
	s.t.Fatalf("no row of %q", name)
	return nil
}

// want checks amount and quality booked to a workload in the window.
func (s *scenario) want(name string, r usage.Resource, amount int64, q usage.Quality) {
	s.t.Helper()
	u := &s.row(name).Usage
	if u.Amount[r] != amount || u.Quality.Get(r) != q {
		s.t.Errorf("%q: %d of %v, %v; want %d, %v", name, u.Amount[r], r, u.Quality.Get(r), amount, q)
	}
}

func unix(ns int64) time.Time { return time.Unix(0, ns).UTC() }

func (s *scenario) opened(how usage.StartReason, start int64, gaps ...usage.Gap) {
	s.t.Helper()
	if s.w.StartReason != how || s.w.Start != start {
		s.t.Errorf("window opens with %v at %d, want %v at %d", s.w.StartReason, s.w.Start, how, start)
	}
	if d := cmp.Diff(gaps, s.w.Gaps); d != "" {
		s.t.Errorf("gaps (-want +got):\n%s", d)
	}
}

func TestFirstWindow(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 500, namedGroup{name: "a", life: 5, cpu: 300, mem: 100})
	s.tick(11*second, 600, namedGroup{name: "a", life: 5, cpu: 350, mem: 100})
	s.close()
	s.opened(usage.StartFirst, 10*second)
	s.want("a", usage.CPU, 50, usage.Measured)
	s.tick(12*second, 600, namedGroup{name: "a", life: 5, cpu: 350, mem: 100})
	s.close()
	s.opened(usage.StartContinued, 11*second)
}

func TestNewAfterLoss(t *testing.T) {
	s := newScenario(t)
	s.acc = attribute.NewAfterLoss("n", "the disk is gone")
	s.tick(10*second, 500)
	s.close()
	at := unix(1010 * second)
	s.opened(usage.StartFirst, 10*second, usage.Gap{From: at, To: at, Reason: usage.StateLost, Detail: "the disk is gone"})
}

// TestResumed checks a pause of 8 s: "a" continued, "new" began, "old" and "older" ended.
func TestResumed(t *testing.T) {
	s := newScenario(t)
	old := []namedGroup{{name: "a", life: 5, cpu: 300, mem: 100}, {name: "older", life: 6, cpu: 70, mem: 50}, {name: "old", up: "older", life: 7, cpu: 50, mem: 20}}
	s.tick(10*second, 1000, old...)
	old[0].cpu = 310
	s.tick(11*second, 1050, old...)
	s.restart()
	if got := s.row("a").Total[usage.CPU]; got != 10 {
		t.Errorf("total of a is %d, want 10", got)
	}
	s.acc.SetInterval(time.Second)
	now := []namedGroup{{name: "a", life: 5, cpu: 510, mem: 300}, {name: "new", life: 9, cpu: 40, mem: 1000}}
	s.tick(19*second, 1400, now...)
	s.tick(20*second, 1400, now...)
	s.close()
	s.opened(usage.StartResumed, 11*second, usage.Gap{From: unix(1011 * second), To: unix(1019 * second), Reason: usage.Unwatched})
	s.want("a", usage.CPU, 200, usage.Measured)
	s.want("a", usage.Memory, 8*200+300, usage.Apportioned)
	s.want("new", usage.CPU, 40, usage.Measured)
	s.want("new", usage.Memory, 1000, usage.Measured) // of one second; before that unknown
	s.want("", usage.CPU, 350-240, usage.Apportioned)
	s.want("", usage.Memory, 9*6000-8*200-300-1000, usage.Apportioned)
	s.want("", usage.PIDs, 900, usage.Apportioned)
	if row := s.row("old"); !row.Ended || row.Workload.Parent != "id of older" || row.Usage.Present != 0 || row.Workload.Key != "key of old" {
		t.Errorf("the row of a group that ended meanwhile: %+v", row)
	}
	a := s.row("a")
	if a.Usage.Covered != time.Second || a.Total[usage.CPU] != 210 || a.Total[usage.Memory] != 100+1900 {
		t.Errorf("a: covered %v, total %d ns and %d byte-seconds; want 1s, 210, 2000", a.Usage.Covered, a.Total[usage.CPU], a.Total[usage.Memory])
	}
	if s.w.Balance.Skew != (usage.Shares{}) {
		t.Errorf("skew %v", s.w.Balance.Skew)
	}
}

// TestResumedAfterStep checks that the length of a pause is right although the wall clock was set
// back by an hour meanwhile.
func TestResumedAfterStep(t *testing.T) {
	s := newScenario(t)
	s.tick(4000*second, 1000)
	s.tick(4001*second, 1050)
	s.restart()
	s.step = -3600 * second
	s.tick(4009*second, 1400)
	s.close()
	s.opened(usage.StartResumed, 4001*second, usage.Gap{From: unix(1401 * second), To: unix(1409 * second), Reason: usage.Unwatched})
}

// TestBooted checks that after a reboot all counters and the window begin at zero.
func TestBooted(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 1000, namedGroup{name: "a", life: 5, cpu: 300, mem: 100})
	s.tick(11*second, 1050, namedGroup{name: "a", life: 5, cpu: 310, mem: 100})
	s.restart()
	snap := &usage.Snapshot{Boot: "c", At: 60 * second, Mono: 60 * second, Offset: 2000 * second}
	snap.Node = usage.Node{CPUs: 4, MemTotal: 10000, MemFree: 4000, Tasks: 100, Steal: 40 * second}
	snap.Node.Total.Put(usage.DiskRead, 777)
	g := two(0, 900, 500).Groups
	g[0].New, g[1].New = true, true
	g[1].Put(usage.Memory, 1<<10)
	snap.Groups = g
	s.show(snap)
	snap.At += second
	snap.Mono += second
	g[0].New, g[1].New = false, false
	s.show(snap)
	s.close()
	s.opened(usage.StartBooted, 0, usage.Gap{From: unix(1011 * second), To: unix(2000 * second), Reason: usage.Rebooted},
		usage.Gap{From: unix(2000 * second), To: unix(2060 * second), Reason: usage.Unwatched})
	s.want("1", usage.CPU, 500, usage.Measured)
	s.want("1", usage.Memory, 1<<10, usage.Measured)
	if got := s.w.Total.Covered; got != time.Second {
		t.Errorf("covered %v of the machine, want 1s: memory before that is unknown", got)
	}
	s.want("0", usage.CPU, 400, usage.Measured)
	s.want("0", usage.PIDs, 100, usage.Measured)
	if got, want := s.w.Balance.Whole.Get(usage.CPU), 61*4*second-40*second; got != want {
		t.Errorf("the whole of CPU is %d, want %d", got, want)
	}
	if got := s.w.Total.Amount[usage.DiskRead]; got != 777 || s.w.CPUs != 4 {
		t.Errorf("the machine read %d bytes with %d CPUs, want 777 with 4", got, s.w.CPUs)
	}
	if got := s.row("1").Total[usage.CPU]; got != 500 {
		t.Errorf("total is %d, want 500", got)
	}
}

// TestBootedInThePast checks that no gap ends before it begins if the clock was set back at a reboot.
func TestBootedInThePast(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 1000)
	s.restart()
	snap := two(60*second, 900)
	snap.Boot, snap.Offset = "c", 500*second
	s.show(snap)
	s.close()
	s.opened(usage.StartBooted, 0, usage.Gap{From: unix(1010 * second), To: unix(1010 * second), Reason: usage.Rebooted},
		usage.Gap{From: unix(500 * second), To: unix(560 * second), Reason: usage.Unwatched})
}

// TestResumedByNameOnce checks that only one of two groups of the same name continues an account: the
// one with its id, or else the first whose id is not known.
func TestResumedByNameOnce(t *testing.T) {
	const fake = 1 << 63
	for _, life := range [][3]uint64{{fake | 1, fake | 2, fake | 3}, {5, 5, fake | 3}, {5, fake | 2, fake | 3}} {
		s := newScenario(t)
		s.tick(10*second, 1000, namedGroup{name: "b", life: 4}, namedGroup{name: "a", life: life[0], cpu: 300})
		s.restart()
		s.tick(11*second, 2000, namedGroup{name: "a", life: life[1], cpu: 310}, namedGroup{name: "a", life: life[2], cpu: 320})
		s.close()
		var got []int64
		for _, r := range s.w.Rows {
			if r.Workload.Name == "a" {
				got = append(got, r.Usage.Amount[usage.CPU])
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, []int64{10, 320}) {
			t.Errorf("%x: booked %v, want 10 to the one that continues and 320 to the other", life, got)
		}
	}
}

// TestRestoredInThePast checks that a checkpoint from the future of the same boot is not used.
func TestRestoredInThePast(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 1000)
	s.restart()
	s.tick(5*second, 900)
	s.close()
	s.opened(usage.StartFirst, 5*second)
}

// TestRestoredAtOnce checks that a snapshot of the very time at which the accounts closed resumes
// them.
func TestRestoredAtOnce(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 1000)
	s.restart()
	s.tick(10*second, 1000)
	s.close()
	s.opened(usage.StartResumed, 10*second, usage.Gap{From: unix(1010 * second), To: unix(1010 * second), Reason: usage.Unwatched})
}

// TestResumedKnowsTheOld checks that a group that shows more than the group above gained is taken
// to be older than the pause: its use is booked above.
func TestResumedKnowsTheOld(t *testing.T) {
	for _, c := range []struct{ cpu, late, above int64 }{{100, 100, 50}, {150, 150, 0}, {151, 0, 150}, {5000, 0, 150}} {
		s := newScenario(t)
		s.tick(10*second, 9000, namedGroup{name: "a", life: 5, cpu: 7000})
		s.restart()
		s.tick(12*second, 9150, namedGroup{name: "a", life: 5, cpu: 7150}, namedGroup{name: "late", up: "a", life: 6, cpu: c.cpu})
		s.close()
		s.want("late", usage.CPU, c.late, usage.Measured)
		q := usage.Measured
		if c.late == 0 {
			q = usage.Apportioned
		}
		s.want("a", usage.CPU, c.above, q)
	}
}

// TestResumedSlack checks that a new group may show more than the group above gained, by what all CPUs
// do while the groups are read, at this tick and before the pause.
func TestResumedSlack(t *testing.T) {
	for extra, late := range map[int64]int64{8: 158, 9: 0} {
		s := newScenario(t)
		s.tick(10*second, 9000, namedGroup{name: "a", life: 5, cpu: 7000})
		s.restart()
		snap := two(12*second, 9300, 7150, 150+extra)
		snap.Took, snap.Node.CPUs = 1, 4
		snap.Groups[1].Life.ID = 5
		for i, name := range []string{"", "a", "late"} {
			snap.Groups[i].New = true
			snap.Groups[i].Workload = workload.Workload{ID: workload.ID("id of " + name), Key: "key of " + name, Name: name}
		}
		snap.Groups[2].Life.ID = 6
		s.show(snap)
		s.close()
		s.want("late", usage.CPU, late, usage.Measured)
	}
}

// TestResumedByNameAlone checks that a single group is matched by name, if its counters stayed as they
// were or grew.
func TestResumedByNameAlone(t *testing.T) {
	const fake = 1 << 63
	for _, c := range []struct {
		life uint64
		cpu  int64
		same bool
	}{{fake | 9, 300, true}, {fake | 9, 310, true}, {fake | 9, 299, false}, {12, 300, true}, {fake, 300, true}} {
		s := newScenario(t)
		s.tick(10*second, 1000, namedGroup{name: "a", life: fake | 1, cpu: 300})
		s.restart()
		s.tick(11*second, 1000, namedGroup{name: "a", life: c.life, cpu: c.cpu})
		s.close()
		rows := 0
		for _, r := range s.w.Rows {
			if r.Workload.Name == "a" {
				rows++
			}
		}
		if same := rows == 1; same != c.same {
			t.Errorf("id %d, %d ns after 300: the same group %v, want %v", c.life, c.cpu, same, c.same)
		}
	}
}

// TestResumedCounters checks that counters of the agent restart at zero, while those of the kernel
// continue unless they went back. Those of disks went back because a device was removed.
func TestResumedCounters(t *testing.T) {
	put := func(counted bool, disk, net int64) func(*usage.Group) {
		return func(g *usage.Group) {
			if disk >= 0 {
				g.Put(usage.DiskRead, disk)
				g.Own |= usage.SetOf(usage.DiskRead)
			}
			if net >= 0 {
				g.Put(usage.NetworkRx, net)
			}
			if counted {
				g.Counted = usage.SetOf(usage.DiskRead, usage.NetworkRx)
			}
		}
	}
	for _, c := range []struct {
		name                string
		counted, counts     bool // by the agent, before and after
		before, after, then int64
		disk, net           int64
	}{
		{"the meter's", true, true, 100, 60, 70, 70, 70},
		{"the meter's, more than before", true, true, 100, 500, 510, 510, 510},
		{"the meter's, shown late", true, true, 100, -1, 30, 30, 30},
		{"the kernel's", false, false, 100, 150, 160, 60, 60},
		{"the kernel's, shown late", false, false, 100, -1, 160, 60, 60},
		{"the kernel's, restarted", false, false, 100, 20, 30, 10, 30},
		{"the kernel's, half of it", false, false, 100, 50, 60, 10, 10},
		{"the kernel's, less than half of it", false, false, 100, 49, 59, 10, 59},
		{"the kernel's, without what was forgotten", false, false, 100, 80, 90, 10, 10},
		{"the kernel's after the meter's", true, false, 10, 5000, 5010, 10, 10},
		{"the meter's after the kernel's", false, true, 5000, 10, 30, 30, 30},
	} {
		s := newScenario(t)
		s.tick(10*second, 0, namedGroup{name: "a", life: 5, also: put(c.counted, c.before, c.before)})
		s.restart()
		s.tick(11*second, 0, namedGroup{name: "a", life: 5, also: put(c.counts, c.after, c.after)})
		s.tick(12*second, 0, namedGroup{name: "a", life: 5, also: put(c.counts, c.then, c.then)})
		s.close()
		for r, want := range map[usage.Resource]int64{usage.DiskRead: c.disk, usage.NetworkRx: c.net} {
			if got := s.row("a").Usage.Amount[r]; got != want {
				t.Errorf("%s: %v is %d, want %d", c.name, r, got, want)
			}
			q := usage.Measured
			if r == usage.DiskRead && !c.counted && !c.counts && c.after >= 0 && c.after < c.before {
				q = usage.Apportioned
			}
			if got := s.row("a").Usage.Quality.Get(r); got != q {
				t.Errorf("%s: %v is %v, want %v", c.name, r, got, q)
			}
		}
	}
}

// TestResumedBelowBooked checks a counter that is less than what was booked of it, after a correction by
// the kernel: it counts on from where it is since the first restart, also after a second one.
func TestResumedBelowBooked(t *testing.T) {
	s := newScenario(t)
	show := func(at, sent int64) {
		t.Helper()
		s.tick(at*second, 0, namedGroup{name: "a", life: 5, also: func(g *usage.Group) { g.Put(usage.NetworkTx, sent) }})
	}
	show(10, 100)
	show(11, 60)
	s.restart()
	show(12, 60)
	s.restart() // the record is a delta
	show(13, 70)
	s.close()
	s.want("a", usage.NetworkTx, 10, usage.Measured)
}

// TestResumedRootTasks checks a root group without a counter, whose CPU time is a sum over its
// present tasks: after a restart the sum differs, and never more is booked.
func TestResumedRootTasks(t *testing.T) {
	own := func(s *scenario, at, cpu int64) {
		snap := two(at, cpu)
		snap.Groups[0].Own = usage.SetOf(usage.CPU)
		s.show(snap)
	}
	for _, c := range []struct{ after, then, want int64 }{{1100, 1150, 150}, {900, 950, 50}, {100, 150, 50}} {
		s := newScenario(t)
		own(s, 10*second, 500)
		own(s, 11*second, 1000)
		s.restart()
		own(s, 12*second, c.after)
		own(s, 13*second, c.then)
		s.close()
		s.want("0", usage.CPU, c.want, usage.Measured)
	}
}

// TestResumedByName checks that groups with substitute ids, which differ in each run, are matched
// by name if their counters continued.
func TestResumedByName(t *testing.T) {
	const fake = 1 << 63
	s := newScenario(t)
	was := []namedGroup{{name: "a", life: fake | 1, cpu: 300}, {name: "b", life: fake | 2, cpu: 400}, {name: "c", life: fake | 3, cpu: 500}, {name: "d", life: 9, cpu: 50}}
	s.tick(10*second, 10000, was...)
	s.restart()
	s.tick(11*second, 10100, namedGroup{name: "b", life: fake | 1, cpu: 410}, namedGroup{name: "a", life: 77, cpu: 330}, namedGroup{name: "c", life: 78, cpu: 20},
		namedGroup{name: "d", life: 10, cpu: 5})
	s.close()
	s.want("b", usage.CPU, 10, usage.Measured)
	s.want("a", usage.CPU, 30, usage.Measured)
	for i, r := range s.w.Rows {
		if r.Workload.Name == "c" && !r.Ended && r.Usage.Amount[usage.CPU] != 20 || r.Workload.Name == "d" && !r.Ended && r.Usage.Amount[usage.CPU] != 5 {
			t.Errorf("row %d: another life of %s was booked %d ns", i, r.Workload.Name, r.Usage.Amount[usage.CPU])
		}
	}
}

// TestRestoreOutlives checks a checkpoint, full or not, of the tick in which two groups ended before a
// renamed group below them.
func TestRestoreOutlives(t *testing.T) {
	for _, full := range []bool{false, true} {
		s := newScenario(t)
		top, up, low := namedGroup{name: "top", life: 4, cpu: 600}, namedGroup{name: "up", up: "top", life: 5, cpu: 500}, namedGroup{name: "low", up: "up", life: 6, cpu: 300, mem: 100}
		s.tick(10*second, 1000, top, up, low)
		s.close()
		s.v.save(s.acc, true)
		top.final, up.final = true, true
		rename := func(g *usage.Group) { g.Workload.Name = "lower" }
		low.also = rename
		s.tick(11*second, 1000, top, up, low)
		s.close()
		s.v.save(s.acc, full)
		s.acc = s.v.restore(t)
		s.v.save(s.acc, true) // before a tick
		s.acc = s.v.restore(t)
		clear(s.known)
		low.cpu, low.up = 350, ""
		s.tick(12*second, 1100, low)
		s.restart()
		s.want("lower", usage.CPU, 50, usage.Measured)
		s.want("lower", usage.Memory, 100, usage.Apportioned)
		s.want("", usage.CPU, 50, usage.Measured)
		s.tick(13*second, 1100)
		s.close()
		if !s.row("lower").Ended {
			t.Errorf("full %v: no row with the end under the latest name", full)
		}
	}
}

// TestRestoredKeys checks the keys of restored workloads, most of which are the boot and the path: of
// some a record holds another one, until a later record has none.
func TestRestoredKeys(t *testing.T) {
	s := newScenario(t)
	group := func(name, key string) namedGroup {
		return namedGroup{name: name, life: uint64(name[0]), also: func(g *usage.Group) { g.Workload.Key, g.Workload.Path = key, "/"+name }}
	}
	s.tick(10*second, 0, group("a", "b/a"), group("b", "of b"), group("c", "b/c"), group("d", "of d"), group("e", "of e"))
	s.close()
	s.v.save(s.acc, true)
	s.tick(11*second, 0, group("a", "b/a"), group("b", "of b"), group("c", "of c"), group("d", "b/d"), group("e", "later"))
	s.restart()
	s.tick(12*second, 0) // all are gone
	s.close()
	for name, want := range map[string]string{"a": "b/a", "b": "of b", "c": "of c", "d": "b/d", "e": "later"} {
		if got := s.row(name).Workload.Key; got != want {
			t.Errorf("the key of %s is %q, want %q", name, got, want)
		}
	}
}

// TestResumedSplit checks that user and system time sum to CPU time in the window of a restart,
// although they are read at other times.
func TestResumedSplit(t *testing.T) {
	s := newScenario(t)
	split := func(user, system int64) func(*usage.Group) {
		return func(g *usage.Group) {
			g.Put(usage.CPUUser, user)
			g.Put(usage.CPUSystem, system)
		}
	}
	s.tick(10*second, 1000, namedGroup{name: "a", life: 5, cpu: 100, also: split(0, 0)})
	s.tick(11*second, 1000, namedGroup{name: "a", life: 5, cpu: 200, also: split(30, 10)})
	s.restart()
	s.tick(12*second, 1000, namedGroup{name: "a", life: 5, cpu: 300})
	s.tick(13*second, 1000, namedGroup{name: "a", life: 5, cpu: 400, also: split(40, 30)})
	s.close()
	s.want("a", usage.CPUUser, 75+33, usage.Apportioned)
	s.want("a", usage.CPUSystem, 25+67, usage.Apportioned)
}

// TestCovered checks that a tick several times longer than usual is not covered.
func TestCovered(t *testing.T) {
	s := newScenario(t)
	s.acc.SetInterval(time.Second)
	for _, at := range []int64{10, 11, 13, 18, 19, 23} {
		s.tick(at*second, 0, namedGroup{name: "a", life: 5})
	}
	s.close()
	for _, name := range []string{"a", "", "idle"} {
		if got := s.row(name).Usage.Covered; got != 8*time.Second {
			t.Errorf("covered %v of %q, want 8s", got, name)
		}
	}
	if s.w.Total.Covered != 13*time.Second {
		t.Errorf("covered %v of the machine, want 13s", s.w.Total.Covered)
	}
}

// TestMachineCovered checks that machine totals cover pauses too, so that averages include that
// time.
func TestMachineCovered(t *testing.T) {
	s := newScenario(t)
	for _, at := range []int64{10, 11} {
		s.tick(at*second, 0, namedGroup{name: "a", life: 5})
	}
	s.close()
	s.restart()
	s.tick(31*second, 0, namedGroup{name: "a", life: 5})
	s.tick(32*second, 0, namedGroup{name: "a", life: 5})
	s.close()
	if got := s.w.Total.Covered; got != 21*time.Second {
		t.Errorf("covered %v of the machine with a pause, want 21s", got)
	}
	if got := s.row("a").Usage.Covered; got != time.Second {
		t.Errorf("covered %v of a group with a pause, want 1s", got)
	}
}

// TestWindowTotal checks that machine totals are never negative and begin at the first reading.
func TestWindowTotal(t *testing.T) {
	acc := attribute.New("n")
	var w usage.Window
	show := func(at, disk, net int64) {
		s := two(at*second, 0)
		s.Node.Total.Put(usage.DiskRead, disk)
		if net >= 0 {
			s.Node.Total.Put(usage.NetworkRx, net)
		}
		acc.Tick(s)
	}
	show(1, 100, -1)
	if acc.CloseWindow(&w); w.Total.Present != usage.SetOf(usage.DiskRead) || w.Total.Amount[usage.DiskRead] != 0 {
		t.Errorf("before anything is counted the machine has %b, %d bytes; want 0 bytes read", w.Total.Present, w.Total.Amount[usage.DiskRead])
	}
	show(2, 150, 1000)
	show(3, 50, 1100)
	show(4, 60, 1150)
	acc.CloseWindow(&w)
	if w.Total.Amount[usage.DiskRead] != 60 || w.Total.Amount[usage.NetworkRx] != 150 {
		t.Errorf("read %d, received %d; want 60 and 150", w.Total.Amount[usage.DiskRead], w.Total.Amount[usage.NetworkRx])
	}
}

// TestResumedRequests checks that the machine's disk requests do not jump when the agent counts them in another
// way after a pause, because the files of groups count requests that the kernel merges and the meter does not.
func TestResumedRequests(t *testing.T) {
	counted, files := usage.SetOf(usage.DiskReads), usage.Set(0)
	for name, c := range map[string]struct {
		before, after usage.Set // how the group's requests count
		none          bool      // before the pause they did not
		jump          int64     // of the machine's counter
		want          int64     // booked after the pause, of 30 in it and 10 since
		machine       int64
	}{
		"as before, by files":      {before: files, after: files, machine: 40, want: 40},
		"as before, by the meter":  {before: counted, after: counted, machine: 40, want: 40},
		"to files":                 {before: counted, after: files, jump: 5000, machine: 10, want: 10},
		"to files from none":       {none: true, after: files, jump: 5000, machine: 10, want: 10},
		"to the meter":             {before: files, after: counted, jump: -5000, machine: 10, want: 10},
		"to the meter, after much": {before: files, after: counted, jump: 1, machine: 10, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			tick := func(at, total, group int64, how usage.Set, none bool) {
				snap := &usage.Snapshot{Boot: "b", At: at * second, Mono: at * second, Offset: 1000 * second}
				snap.Node = usage.Node{CPUs: 4, MemTotal: 10000, MemFree: 4000, Tasks: 100}
				snap.Node.Total.Put(usage.DiskReads, total)
				for i, name := range []string{"", "a"} {
					g := &usage.Group{Slot: usage.Slot(i), Life: workload.Life{ID: uint64(1 + i)}, New: !s.known[name], Parent: usage.Slot(i - 1),
						Workload: workload.Workload{ID: workload.ID("id of " + name), Key: "key of " + name, Name: name}}
					if s.known[name] = true; i == 0 {
						g.Parent = usage.NoSlot
					}
					g.MemoryParent = g.Parent
					g.Put(usage.CPU, at*second)
					if i > 0 && !none {
						g.Put(usage.DiskReads, group)
						g.Counted, g.Own = how, how
					}
					snap.Groups = append(snap.Groups, g)
				}
				s.show(snap)
			}
			tick(1, 1000, 100, c.before, c.none)
			tick(2, 1100, 150, c.before, c.none)
			s.restart()
			group := int64(160)
			if c.after != c.before || c.none {
				group = 3000
			}
			if c.after == counted {
				group = 0
			}
			tick(10, 1130+c.jump, group, c.after, false)
			tick(11, 1140+c.jump, group+5, c.after, false)
			s.close()
			if got := s.w.Total.Amount[usage.DiskReads]; got != c.machine {
				t.Errorf("the machine has %d requests, want %d", got, c.machine)
			}
			var sum int64
			for i := range s.w.Rows {
				sum += s.w.Rows[i].Usage.Amount[usage.DiskReads]
			}
			if sum != c.want {
				t.Errorf("the rows have %d requests, want %d", sum, c.want)
			}
		})
	}
}
