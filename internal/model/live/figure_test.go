package live_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// drawUsage draws the use of any resources, of any quality.
func drawUsage(t *rapid.T) (u usage.Usage) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		if rapid.Bool().Draw(t, "present") {
			u.Put(r, rapid.Int64Range(0, 1<<45).Draw(t, "amount"), usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality")))
		}
	}
	return u
}

// TestRatesAreFigures checks that the figures read from the rates of a window equal its use, to six
// digits, and that absent figures stay absent.
func TestRatesAreFigures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := drawUsage(t)
		length := time.Duration(rapid.Int64Range(1e9, 1e12).Draw(t, "length"))
		amounts := live.FiguresOf(&u)
		var r live.Row
		r.Rates, r.Quality = amounts.Rates(length)
		got := r.Figures()
		for f := range live.FieldLimit {
			want := live.Figure{Value: amounts[f].Value / length.Seconds(), Quality: amounts[f].Quality}
			if f == live.PowerError && want.Quality != usage.Absent {
				if want.Quality = amounts[live.Power].Quality; want.Quality == usage.Absent {
					want = live.Figure{}
				}
			}
			if got[f].Quality != want.Quality || math.Abs(got[f].Value-want.Value) > max(1e-5*want.Value, map[bool]float64{true: 1}[f == live.Memory]) {
				t.Errorf("%s is %v, want %v", f, got[f], want)
			}
		}
		if rates, quality := amounts.Rates(0); rates != (live.Rates{}) || len(quality) != 0 {
			t.Errorf("a window of no length has %+v, %v", rates, quality)
		}
	})
}

// The power of a workload is that of all domains together, of the worst quality.
func TestPowerOfDomains(t *testing.T) {
	var u usage.Usage
	u.Put(usage.EnergyPackage, 30e6, usage.Measured)
	u.Put(usage.EnergyDRAM, 5e6, usage.Modelled)
	amounts := live.FiguresOf(&u)
	rates, quality := amounts.Rates(10 * time.Second)
	if rates.Power == nil || *rates.Power != 3.5 || rates.PowerError != nil || rates.CPU != nil {
		t.Errorf("rates %+v, want 3.5 W and nothing else", rates)
	}
	if d := cmp.Diff(map[string]usage.Quality{"power": usage.Modelled}, quality); d != "" {
		t.Error(d)
	}
}

// The sum of several nodes is that of their parts, in any order, and adding changes none of
// them: what a receiver holds is shared by all who ask.
func TestSumOfNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(1e9, 0)
		s := live.NewSummary(at)
		var nodes, before []live.NodePresent
		var whole float64
		for range rapid.IntRange(1, 5).Draw(t, "nodes") {
			var parts [3]usage.Usage
			for i := range parts {
				parts[i] = drawUsage(t)
			}
			total := drawUsage(t)
			n := live.NodePresent{To: &at, Present: live.PresentOf(parts, &total, 10*time.Second)}
			m := live.NodePresent{To: &at, Present: live.PresentOf(parts, &total, 10*time.Second)}
			nodes, before = append(nodes, n), append(before, m)
			if n.Power != nil {
				if n.Power.Error == nil {
					t.Fatal("power may not be off")
				}
				whole += n.Power.Whole
			}
		}
		for i := range nodes {
			s.Add(&nodes[i])
		}
		if d := cmp.Diff(before, nodes); d != "" {
			t.Fatalf("adding a node changed it:\n%s", d)
		}
		switch p := s.Sum.Power; {
		case p == nil && whole != 0:
			t.Error("the sum has no power")
		case p != nil && (p.Whole != whole || math.Abs(p.Workloads+p.System+p.Idle-p.Whole) > 1e-9*p.Whole):
			t.Errorf("power %+v, want a whole of %v", p, whole)
		}
	})
}

func TestPartOfKind(t *testing.T) {
	var p live.Parts
	p.Add(workload.Service, live.Figure{Value: 1, Quality: usage.Measured})
	p.Add(workload.VM, live.Figure{Value: 2, Quality: usage.Apportioned})
	p.Add(workload.System, live.Figure{Value: 4, Quality: usage.Measured})
	p.Add(workload.Idle, live.Figure{Value: 8, Quality: usage.Measured})
	p.Add(workload.Idle, live.Figure{Value: 16})
	if d := cmp.Diff(live.Parts{Workloads: 3, System: 4, Idle: 8, Whole: 15, Quality: usage.Apportioned}, p); d != "" {
		t.Error(d)
	}
}
