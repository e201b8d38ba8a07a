package top

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/ui/top"
)

// reading is a machine of four CPUs, n seconds after the start, with workloads that use cores; a
// negative number is absent.
func reading(n int, cores map[workload.ID]float64) tickMsg {
	m := &live.Machine{Time: toptest.Start.Add(time.Duration(n) * time.Second), Tick: time.Second, CPUs: 4, CPU: live.CPUParts{Whole: 4}}
	for _, id := range []workload.ID{"a", "b"} {
		v, ok := cores[id]
		if !ok {
			continue
		}
		r := live.Row{ID: id, Name: "work-" + string(id), Kind: workload.Service}
		if v >= 0 {
			memory := int64(v * (1 << 20))
			r.CPU, r.Memory = &v, &memory
			m.CPU.Workloads += v
		}
		m.Rows = append(m.Rows, r)
	}
	m.CPU.Idle = 4 - m.CPU.Workloads
	return tickMsg{m}
}

func only(cores float64) map[workload.ID]float64 { return map[workload.ID]float64{"a": cores} }

// line returns the line of the screen that begins with a text.
func (s *screen) line(begin string) string {
	s.t.Helper()
	for l := range strings.Lines(s.text()) {
		if strings.HasPrefix(l, begin) {
			return strings.TrimRight(l, " \n")
		}
	}
	s.t.Fatalf("no line begins with %q:\n%s", begin, s.text())
	return ""
}

func (s *screen) expectLine(begin, want string) {
	s.t.Helper()
	if got := s.line(begin); got != want {
		s.t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The header of a screen with room has the machine's past; absent and failed readings are gaps.
func TestPastOfMachine(t *testing.T) {
	s := open(t, 160, 30)
	s.m.Update(errorMsg{errors.New("not yet")})
	s.m.Update(reading(0, only(4)))
	s.expectLine("Past CPU", "Past CPU █  at most 4.00 of 4.00 in 1s")
	s.m.Update(reading(1, only(0)))
	s.m.Update(errorMsg{errors.New("gone")})
	s.expectLine("Past CPU", "Past CPU █▁   at most 4.00 of 4.00 in 3s")
	s.m.Update(errorMsg{errors.New("gone")})
	s.m.Update(reading(4, only(2)))
	s.expectLine("Past CPU", "Past CPU █▁  ▅  at most 4.00 of 4.00 in 5s")
	s.m.Update(tickMsg{&live.Machine{Time: toptest.Start.Add(5 * time.Second)}})
	s.m.Update(reading(6, only(1)))
	s.expectLine("Past CPU", "Past CPU █▁  ▅ ▃  at most 4.00 of 4.00 in 7s")
	s.m.Update(tea.WindowSizeMsg{Width: 160, Height: 29})
	s.expect(false, "Past CPU")
}

// Readings that did not come are gaps, however many; a late reading with a longer tick is none.
func TestMissedReadings(t *testing.T) {
	s := open(t, 160, 30)
	s.m.Update(reading(0, only(4)))
	s.m.Update(reading(3, only(4)))
	s.expectLine("Past CPU", "Past CPU █  █  at most 4.00 of 4.00 in 4s")
	late := reading(6, only(4))
	late.machine.Tick = 3 * time.Second
	s.m.Update(late)
	s.expectLine("Past CPU", "Past CPU █  ██  at most 4.00 of 4.00 in 7s")
	s.m.Update(errorMsg{errors.New("gone")})
	s.m.Update(reading(9, only(4)))
	s.expectLine("Past CPU", "Past CPU █  ██  █  at most 4.00 of 4.00 in 10s")
	s.m.Update(reading(12, only(4)))
	s.expectLine("Past CPU", "Past CPU █  ██  █  █  at most 4.00 of 4.00 in 13s")
	s.m.Update(reading(100000, only(2)))
	s.expectLine("Past CPU", "Past CPU "+strings.Repeat(" ", top.Kept-1)+"▅  at most 2.00 of 4.00 in 2m0s")
	s.m.Update(reading(1, only(4))) // the clock was set back
	s.expect(true, strings.Repeat(" ", top.Kept-2)+"▅█  at most 4.00 of 4.00 in 2m0s")
}

// Details have the past of the workload, with gaps for readings that lack its figures or failed.
func TestPastOfWorkload(t *testing.T) {
	s := open(t, 160, 40)
	s.m.Update(reading(0, nil))
	for i, v := range []float64{1, 0, -1, 4} {
		s.m.Update(reading(1+i, only(v)))
	}
	s.press("i")
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 4s")
	s.expectLine("cpu", "cpu    4.000 cores ▃▁ █")
	s.expectLine("memory", "memory    4.00 MiB ▃▁ █")
	s.m.Update(errorMsg{errors.New("gone")})
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 5s")
	s.expectLine("cpu", "cpu    4.000 cores ▃▁ █")
	s.m.Update(reading(6, only(2)))
	s.expectLine("cpu", "cpu    4.000 cores ▃▁ █ ▅")
	s.expectLine("memory", "memory    4.00 MiB ▃▁ █ ▅")
	for i := range top.Kept {
		s.m.Update(reading(7+i, only(1)))
	}
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 2m0s")
	s.expectLine("cpu", "cpu    1.000 cores "+strings.Repeat("█", top.Kept))
	s.m.opt.ASCII = true
	s.expectLine("cpu", "cpu    1.000 cores "+strings.Repeat("#", top.Kept))
}

// Details of a workload without figures say so.
func TestPastOfAbsent(t *testing.T) {
	s := open(t, 140, 40)
	s.m.Update(reading(0, only(-1)))
	s.press("i")
	s.expectLine("cpu", "cpu              –")
	s.expectLine("memory", "memory           –")
}

// The past of a workload that ended is dropped, except that of the inspected one, which stays on
// the screen as it was, and goes on with a gap when the workload is back.
func TestPastOfTheEnded(t *testing.T) {
	s := open(t, 140, 40)
	both := map[workload.ID]float64{"a": 4, "b": 2}
	s.m.Update(reading(0, both))
	s.m.Update(reading(1, both))
	s.press("i")
	s.m.Update(reading(2, nil))
	s.m.Update(reading(3, nil))
	if len(s.m.history.rows) != 1 || s.m.history.rows["a"] == nil {
		t.Errorf("the history has %d workloads, want the inspected one only", len(s.m.history.rows))
	}
	s.expect(true, "ended: these are its last figures")
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 2s")
	s.expectLine("cpu", "cpu    4.000 cores ██")
	s.m.Update(reading(4, both))
	s.expectLine("cpu", "cpu    4.000 cores ██  █")
	s.m.Update(reading(5, nil))
	s.press("esc")
	s.m.Update(reading(6, nil))
	if len(s.m.history.rows) != 0 {
		t.Errorf("the history has %d workloads, want none", len(s.m.history.rows))
	}
}

// A frozen screen keeps the past as it was, also of workloads that ended since, and readings go on.
func TestPastWhileFrozen(t *testing.T) {
	s := open(t, 160, 40)
	both := map[workload.ID]float64{"a": 1, "b": 2}
	s.m.Update(reading(0, both))
	s.press("f")
	for i := range top.Kept {
		s.m.Update(reading(1+i, only(4)))
	}
	s.m.Update(errorMsg{errors.New("gone")})
	s.expectLine("Past CPU", "Past CPU ▆  at most 3.00 of 4.00 in 1s")
	s.press("down", "i")
	s.expect(true, "work-a")
	s.expectLine("cpu", "cpu    1.000 cores █")
	s.press("esc", "home", "i")
	s.expect(true, "work-b")
	s.expectLine("cpu", "cpu    2.000 cores █")
	s.press("esc", "f", "i")
	s.expect(true, "work-a")
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 2m0s")
	s.expectLine("cpu", "cpu    4.000 cores "+strings.Repeat("█", top.Kept-1))
}

// The row of a machine of a fleet has the past of all its workloads together; a machine that is
// not heard has a gap.
func TestPastOfFleet(t *testing.T) {
	s := open(t, 160, 40)
	s.m.history = newHistory(5 * time.Second)
	for i, cores := range []float64{1, 3, -1, 2} {
		at := toptest.Start.Add(time.Duration(i) * 5 * time.Second)
		n := v1.Node{ID: "1", Name: "web-1", State: "live"}
		rates := live.NodeRates{Node: "1", Name: "web-1", From: at.Add(-10 * time.Second), To: at, CPUs: 4}
		idle, memory := 4-2*cores, int64(1<<20)
		for j := range 2 {
			rates.Rows = append(rates.Rows, live.WorkloadRates{ID: workload.ID(fmt.Sprint(j)), Kind: workload.Service, Name: "s",
				Rates: live.Rates{CPU: &cores, Memory: &memory}, Quality: map[string]usage.Quality{"cpu": usage.Measured}})
		}
		rates.Rows = append(rates.Rows, live.WorkloadRates{ID: "idle", Kind: workload.Idle, Name: "idle", Rates: live.Rates{CPU: &idle, Memory: &memory}})
		f := top.Fleet{Server: "s", At: at, Nodes: []v1.Node{n}, Rates: []live.NodeRates{rates}}
		if cores < 0 {
			f.Nodes[0].State = "silent"
		}
		m, err := f.Machine()
		if err != nil {
			t.Fatal(err)
		}
		s.m.Update(tickMsg{m})
	}
	s.expectLine("Past CPU", "Past CPU ▃█ ▆  at most 6.00 of 4.00 in 20s")
	s.press("i")
	s.expectLine("PAST", "PAST       AT MOST IN THE LAST 20s, WITH ALL BELOW")
	s.expectLine("cpu", "cpu    6.000 cores ▃█ ▆")
	s.expectLine("memory", "memory    2.00 MiB ██ █")
}

// Of two rows with one id, the first counts.
func TestPastOfTwins(t *testing.T) {
	h := newHistory(time.Second)
	msg := reading(0, only(2))
	twin := msg.machine.Rows[0]
	other := 3.0
	twin.CPU = &other
	msg.machine.Rows = append(msg.machine.Rows, twin)
	h.add(msg.machine, "")
	if got := h.of("a").CPU; !slices.Equal(got, []live.Figure{{Value: 2, Quality: usage.Measured}}) {
		t.Errorf("the past is %v, want that of the first row", got)
	}
}
