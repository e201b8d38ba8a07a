package attribute_test

import (
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A peakMachine is a machine with jobs whose memory and high-water marks the test sets.
type peakMachine struct {
	now    int64
	groups []*usage.Group
}

func newPeakMachine() *peakMachine {
	root := &usage.Group{Slot: usage.Root, Parent: usage.NoSlot, MemoryParent: usage.NoSlot, Life: workload.Life{ID: 1},
		Workload: workload.Workload{ID: workload.NewID("n", workload.System, ""), Kind: workload.System, Name: "system", Path: "/"}}
	return &peakMachine{groups: []*usage.Group{root}}
}

func (m *peakMachine) add(parent usage.Slot, born bool) *usage.Group {
	slot := usage.Slot(len(m.groups))
	g := &usage.Group{Slot: slot, Parent: parent, MemoryParent: parent, Life: workload.Life{ID: uint64(slot) + 1}, New: true, Born: born,
		Workload: workload.Workload{ID: workload.NewID("n", workload.Job, string(rune('a'+slot))), Kind: workload.Job, Key: string(rune('a' + slot))}}
	m.groups = append(m.groups, g)
	return g
}

func (m *peakMachine) tick(acc *attribute.Accounts) {
	m.now += 1e9
	acc.Tick(&usage.Snapshot{Boot: "b", At: m.now, Mono: m.now, Node: usage.Node{CPUs: 1, MemTotal: 1 << 40, MemFree: 1 << 39}, Groups: m.groups})
	for _, g := range m.groups {
		g.New, g.Born = false, false
	}
}

// peak closes the window and returns the peak of a group's memory in it.
func (m *peakMachine) peak(t *testing.T, acc *attribute.Accounts, g *usage.Group) int64 {
	t.Helper()
	var w usage.Window
	acc.CloseWindow(&w)
	for i := range w.Rows {
		if u := &w.Rows[i].Usage; w.Rows[i].Workload.ID == g.Workload.ID && u.Present.Has(usage.MemoryPeak) {
			if u.Quality.Get(usage.MemoryPeak) != usage.Measured {
				t.Errorf("the peak is %v", u.Quality.Get(usage.MemoryPeak))
			}
			return u.Amount[usage.MemoryPeak]
		}
	}
	t.Fatal("no peak")
	return 0
}

// The peak of CPU time is that of the busiest tick, over the length of that tick. A tick that readings
// do not cover has none.
func TestCPUPeak(t *testing.T) {
	m, acc := newPeakMachine(), attribute.New("n")
	acc.SetInterval(1e9)
	pod := m.add(usage.Root, true)
	job := m.add(pod.Slot, true)
	used := func(ns, of int64) { // by the job, and by its pod without it
		job.Put(usage.CPU, job.Value[usage.CPU]+ns)
		pod.Put(usage.CPU, pod.Value[usage.CPU]+ns+of)
	}
	used(0, 0)
	m.groups[0].Put(usage.CPU, 0)
	m.tick(acc)
	for _, c := range []struct {
		pause    int64
		ticks    [][2]int64
		job, pod int64
		peakless bool
	}{
		{ticks: [][2]int64{{250e6, 0}, {1999_500_000, 1_499_999}, {500e6, 3e6}}, job: 2000, pod: 3}, // to the nearest
		{ticks: [][2]int64{{499_999, 0}}, job: 0, pod: 0},
		{pause: 9e9, ticks: [][2]int64{{30e9, 0}}, peakless: true},
		{ticks: [][2]int64{{0, 0}, {0, 0}, {0, 0}}, job: 0, pod: 0}, // dormant
		{ticks: [][2]int64{{0, 0}, {7e6, 0}, {0, 0}}, job: 7, pod: 0},
	} {
		m.now += c.pause
		for _, cpu := range c.ticks {
			used(cpu[0], cpu[1])
			m.groups[0].Put(usage.CPU, pod.Value[usage.CPU])
			m.tick(acc)
		}
		var w usage.Window
		acc.CloseWindow(&w)
		for i := range w.Rows {
			u := &w.Rows[i].Usage
			got, ok := u.Get(usage.CPUPeak)
			var want int64
			switch w.Rows[i].Workload.ID {
			case job.Workload.ID:
				want = c.job
			case pod.Workload.ID:
				want = c.pod
			default:
				continue
			}
			if ok == c.peakless || got != want || ok && u.Quality.Get(usage.CPUPeak) != u.Quality.Get(usage.CPU) {
				t.Errorf("%v: the peak of %s is %d, %t, want %d", c.ticks, w.Rows[i].Workload.Kind, got, ok, want)
			}
		}
	}
}

func setMemory(g *usage.Group, level, mark int64) {
	g.Put(usage.Memory, level)
	g.Put(usage.MemoryPeak, mark)
}

// TestPeakIsTheMark checks that the peak of a window is the kernel's high-water mark if that rose in
// it, and the highest level otherwise.
func TestPeakIsTheMark(t *testing.T) {
	acc, m := attribute.New("n"), newPeakMachine()
	old := m.add(usage.Root, false)
	setMemory(old, 10, 900)
	m.tick(acc)
	m.tick(acc)
	if got := m.peak(t, acc, old); got != 10 {
		t.Errorf("a mark of before counting began: %d, the highest level is 10", got)
	}
	job := m.add(usage.Root, true)
	setMemory(job, 20, 300)
	m.tick(acc)
	if got := m.peak(t, acc, job); got != 300 {
		t.Errorf("a job that was born in the window: %d, its mark is 300", got)
	}
	for _, c := range []struct {
		name              string
		level, mark, want int64
	}{
		{"no rise", 25, 300, 25},
		{"a rise", 25, 310, 310},
		{"nothing changes", 25, 310, 25},
		{"a rise alone", 25, 320, 320},
		{"nothing changes again", 25, 320, 25},
		{"a mark that was reset", 30, 30, 30},
		{"a rise after that", 30, 40, 40},
	} {
		setMemory(job, c.level, c.mark)
		m.tick(acc)
		if got := m.peak(t, acc, job); got != c.want {
			t.Errorf("%s, level %d, mark %d: %d, want %d", c.name, c.level, c.mark, got, c.want)
		}
	}
	setMemory(job, 30, 500)
	job.Final = true
	m.tick(acc)
	if got := m.peak(t, acc, job); got != 500 {
		t.Errorf("at its end: %d, want 500", got)
	}
}

// TestPeakOfNested checks that a workload with others below it has the highest level of its own
// memory: its mark includes theirs.
func TestPeakOfNested(t *testing.T) {
	acc, m := attribute.New("n"), newPeakMachine()
	m.tick(acc)
	outer := m.add(usage.Root, true)
	inner := m.add(outer.Slot, true)
	setMemory(outer, 100, 100)
	setMemory(inner, 70, 80)
	m.tick(acc)
	setMemory(outer, 100, 600)
	setMemory(inner, 70, 570)
	m.tick(acc)
	if got := m.peak(t, acc, inner); got != 570 {
		t.Errorf("the inner one: %d, want 570", got)
	}
	inner.Final, inner.Exact = true, true
	setMemory(outer, 40, 700)
	m.tick(acc)
	if got := m.peak(t, acc, outer); got != 40 {
		t.Errorf("the outer one: %d, its level is 40", got)
	}
}

// TestPeakAfterRestart checks that a restored meter books a rise of its pause, and nothing of a mark
// that no run before had read.
func TestPeakAfterRestart(t *testing.T) {
	for _, read := range []bool{true, false} {
		acc, m := attribute.New("n"), newPeakMachine()
		m.tick(acc)
		job := m.add(usage.Root, true)
		job.Put(usage.Memory, 20)
		if read {
			job.Put(usage.MemoryPeak, 300)
		}
		m.tick(acc)
		m.peak(t, acc, job)
		acc, err := attribute.Restore("n", [][]byte{acc.Checkpoint(nil, true)})
		if err != nil {
			t.Fatal(err)
		}
		setMemory(job, 20, 400)
		m.tick(acc)
		if got, want := m.peak(t, acc, job), map[bool]int64{true: 400, false: 20}[read]; got != want {
			t.Errorf("mark read before the pause %t: %d, want %d", read, got, want)
		}
	}
}

// A level that its source integrated between ticks is booked as the source says, with the level of the
// tick as its last; afterwards the trapezoid continues from there.
func TestHeldLevel(t *testing.T) {
	m, acc := newPeakMachine(), attribute.New("n")
	m.tick(acc)
	g := m.add(usage.Root, true)
	held := func(level, integral int64) (booked int64) {
		g.Put(usage.Memory, level)
		g.Held = nil
		if integral >= 0 {
			g.Held = map[usage.Resource]int64{usage.Memory: integral}
		}
		m.tick(acc)
		u, ok := acc.Share(g.Slot)
		if !ok || u.Quality.Get(usage.Memory) != usage.Measured {
			t.Fatalf("share %+v, %v", u, ok)
		}
		return u.Amount[usage.Memory]
	}
	for i, c := range []struct{ level, integral, want int64 }{
		{100, 70, 70}, {100, 90, 90}, {100, 90, 90}, {100, 20, 20}, // it does not repeat a share
		{300, -1, 200}, // from 100 to 300
	} {
		if got := held(c.level, c.integral); got != c.want {
			t.Errorf("tick %d: %d byte-seconds, want %d", i, got, c.want)
		}
	}
}
