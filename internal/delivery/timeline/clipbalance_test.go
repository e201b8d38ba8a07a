package timeline_test

import (
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// TestClipBalance checks the balance of the parts of a window whose rows do not sum to its whole: the
// difference is divided like everything else.
func TestClipBalance(t *testing.T) {
	w := clipCase(usage.StartContinued) // one row, with 100 ms of CPU
	cpu := slices.Index(usage.Wholes[:], usage.CPU)
	b := &w.Balance
	b.Whole[cpu], b.System[cpu], b.Idle[cpu], b.Skew[cpu], b.Violations, b.Lost = 130e6, 10e6, 20e6, -10e6, 10, 20
	ws, _, _ := timeline.Clip([]usage.Window{w}, []time.Duration{0}, nil, []batch.Measured{{Boot: "b", Scope: usage.Machine, From: 130e9, To: 150e9}})
	if len(ws) != 2 {
		t.Fatalf("%d windows", len(ws))
	}
	for i, want := range []struct{ whole, system, idle, skew, workloads, violations, lost int64 }{
		{39e6, 3e6, 6e6, 30e6 + 6e6 - 39e6, 30e6 + 6e6 - 3e6 - 6e6, 3, 6},
		{65e6, 5e6, 10e6, 50e6 + 10e6 - 65e6, 50e6 + 10e6 - 5e6 - 10e6, 5, 10},
	} {
		b := &ws[i].Balance
		if b.Whole[cpu] != want.whole || b.System[cpu] != want.system || b.Idle[cpu] != want.idle || b.Skew[cpu] != want.skew || b.Workloads[cpu] != want.workloads || b.Violations != want.violations || b.Lost != want.lost {
			t.Errorf("part %d: %+v, want %+v", i, b, want)
		}
	}
}

// TestClipManyRanges checks booked ranges that adjoin each other and the window, in any order.
func TestClipManyRanges(t *testing.T) {
	m := func(from, to int64) batch.Measured {
		return batch.Measured{Boot: "b", Scope: usage.Machine, From: from * 1e9, To: to * 1e9}
	}
	for _, c := range []struct {
		booked []batch.Measured
		want   [][2]int64
	}{
		{[]batch.Measured{m(0, 100), m(200, 300)}, [][2]int64{{100, 200}}},
		{[]batch.Measured{m(150, 160), m(110, 120), m(120, 130)}, [][2]int64{{100, 110}, {130, 150}, {160, 200}}},
		{[]batch.Measured{m(100, 150), m(150, 200)}, nil},
		{[]batch.Measured{m(199, 300), m(0, 101)}, [][2]int64{{101, 199}}},
	} {
		ws, by, _ := timeline.Clip([]usage.Window{clipCase(usage.StartContinued)}, []time.Duration{7}, nil, c.booked)
		var got [][2]int64
		for i := range ws {
			got = append(got, [2]int64{ws[i].Start / 1e9, ws[i].End / 1e9})
			if by[i] != 7 {
				t.Errorf("%v: part %d is moved by %v", c.booked, i, by[i])
			}
		}
		if !slices.Equal(got, c.want) || len(by) != len(ws) {
			t.Errorf("%v: %v is left, want %v", c.booked, got, c.want)
		}
	}
}
