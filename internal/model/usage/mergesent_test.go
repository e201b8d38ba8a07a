package usage_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

var resources = []usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak}

func drawSentUsage(t *rapid.T) (u usage.Usage) {
	for _, r := range resources {
		if rapid.Bool().Draw(t, "present") {
			u.Put(r, rapid.Int64Range(0, 1<<40).Draw(t, "amount"), rapid.SampledFrom([]usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled}).Draw(t, "quality"))
		}
	}
	u.Covered = time.Duration(rapid.IntRange(0, 10).Draw(t, "covered")) * time.Second
	return u
}

// older are the totals of lives that are older than the first window.
var older = [usage.Limit]int64{usage.CPU: 1 << 50, usage.Memory: 1 << 51}

// drawSentWindows returns windows as they come over the wire, in order, in which workloads are started again, and
// Totals are whole or left out.
func drawSentWindows(t *rapid.T, n int) []usage.Window {
	at := int64(0)
	sums := map[workload.ShortID][usage.Limit]int64{}
	ws := make([]usage.Window, n)
	for i := range ws {
		w := &ws[i]
		at += rapid.Int64Range(0, 5).Draw(t, "pause")
		w.Boot, w.Start, w.Offset, w.CPUs = "b", at, int64(i), i+1
		at += rapid.Int64Range(1, 10).Draw(t, "length")
		w.End = at
		w.StartReason = usage.StartReason(i % 4)
		w.Total = drawSentUsage(t)
		for j := range w.Balance.Whole {
			w.Balance.Whole[j] = rapid.Int64Range(0, 100).Draw(t, "whole")
			w.Balance.Skew[j] = rapid.Int64Range(-100, 100).Draw(t, "skew")
		}
		for _, short := range rapid.SliceOfNDistinct(rapid.Uint64Range(1, 4), 0, 4, rapid.ID).Draw(t, "rows") {
			lives := rapid.IntRange(1, 3).Draw(t, "lives")
			for life := range lives {
				row := usage.Row{ShortID: workload.ShortID(short), Usage: drawSentUsage(t), Ended: life < lives-1 || rapid.Bool().Draw(t, "ended")}
				sum, known := sums[row.ShortID]
				if !known && i == 0 && life == 0 && rapid.Bool().Draw(t, "older") {
					sum = older
				}
				for r := range sum {
					if usage.Resource(r) != usage.MemoryPeak {
						sum[r] += row.Usage.Amount[r]
					}
				}
				if sums[row.ShortID] = sum; row.Ended {
					delete(sums, row.ShortID)
				}
				if !known || rapid.Bool().Draw(t, "total") {
					row.Has = usage.SetOf(usage.CPU, usage.Memory)
					row.Total[usage.CPU], row.Total[usage.Memory] = sum[usage.CPU], sum[usage.Memory]
				}
				w.Rows = append(w.Rows, row)
			}
		}
	}
	return ws
}

func clone(w usage.Window) usage.Window {
	w.Rows = append([]usage.Row(nil), w.Rows...)
	return w
}

func merged(ws ...usage.Window) usage.Window {
	sum := clone(ws[0])
	for i := range ws[1:] {
		sum.Merge(&ws[1+i])
	}
	return sum
}

func TestMergeOfSentIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawSentWindows(t, 3)
		left := merged(merged(ws[0], ws[1]), ws[2])
		right := merged(ws[0], merged(ws[1], ws[2]))
		if d := cmp.Diff(left, right); d != "" {
			t.Fatalf("(a+b)+c against a+(b+c):\n%s", d)
		}
	})
}

func TestMergeOfSentLosesAndDoublesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawSentWindows(t, rapid.IntRange(2, 6).Draw(t, "windows"))
		before := make([]usage.Window, len(ws))
		for i := range ws {
			before[i] = clone(ws[i])
		}
		sum := merged(ws...)
		if d := cmp.Diff(before, ws); d != "" {
			t.Fatalf("what was merged changed:\n%s", d)
		}
		first, last := ws[0], ws[len(ws)-1]
		if sum.Start != first.Start || sum.End != last.End || sum.Offset != last.Offset || sum.CPUs != last.CPUs || sum.StartReason != first.StartReason {
			t.Fatalf("%+v from %+v to %+v", sum, first, last)
		}
		// Of each workload: the life that is older, the sum of whole lives, and the life that goes on.
		type lives struct{ older, whole, now *usage.Row }
		want := map[workload.ShortID]*lives{}
		var total usage.Usage
		var balance usage.Balance
		rows := 0
		for i := range ws {
			total.Add(&ws[i].Total)
			balance.Add(&ws[i].Balance)
			for j := range ws[i].Rows {
				row := ws[i].Rows[j]
				l := want[row.ShortID]
				if l == nil {
					l = &lives{}
					want[row.ShortID] = l
				}
				switch {
				case l.now != nil:
				case row.Has != 0 && row.Total[usage.CPU] >= older[usage.CPU]:
					l.now = &usage.Row{Total: older}
					rows++
				default:
					l.now = &usage.Row{}
					rows++
				}
				l.now.Usage.Add(&row.Usage)
				for _, r := range []usage.Resource{usage.CPU, usage.Memory} {
					l.now.Total[r] += row.Usage.Amount[r]
				}
				switch ended := l.now; {
				case !row.Ended:
				case ended.Total[usage.CPU] >= older[usage.CPU]:
					l.older, l.now = ended, nil
				case l.whole == nil:
					l.whole, l.now = ended, nil
				default:
					l.whole.Usage.Add(&ended.Usage)
					for _, r := range []usage.Resource{usage.CPU, usage.Memory} {
						l.whole.Total[r] += ended.Total[r]
					}
					l.now = nil
					rows--
				}
			}
		}
		if len(sum.Rows) != rows || sum.Total != total || sum.Balance != balance {
			t.Fatalf("%d rows, want %d; total %v, want %v", len(sum.Rows), rows, sum.Total, total)
		}
		for _, row := range sum.Rows {
			l := want[row.ShortID]
			life := l.now
			switch {
			case row.Ended && row.Total[usage.CPU] >= older[usage.CPU]:
				life = l.older
			case row.Ended:
				life = l.whole
			}
			if life == nil || row.Usage != life.Usage || row.Total != life.Total {
				t.Errorf("workload %v: %+v, want %+v", row.ShortID, row, life)
			}
		}
	})
}

// A total that is left out is that of the window before plus what was used.
func TestMergeCarriesTotals(t *testing.T) {
	window := func(start, used, total int64) *usage.Window {
		row := usage.Row{ShortID: 1}
		row.Usage.Put(usage.CPU, used, usage.Measured)
		if total > 0 {
			row.Has, row.Total[usage.CPU] = usage.SetOf(usage.CPU), total
		}
		return &usage.Window{Start: start, End: start + 1, Rows: []usage.Row{row}}
	}
	for _, c := range []struct{ first, second, want int64 }{{10, 0, 15}, {0, 15, 15}, {10, 25, 25}, {0, 0, 0}} {
		w := window(0, 10, c.first)
		w.Merge(window(1, 5, c.second))
		if got := w.Rows[0]; got.Total[usage.CPU] != c.want || got.Has.Has(usage.CPU) != (c.want > 0) {
			t.Errorf("totals %d and %d: %d, there: %v; want %d", c.first, c.second, got.Total[usage.CPU], got.Has.Has(usage.CPU), c.want)
		}
	}
}

func TestMergeRefusesOverlap(t *testing.T) {
	for name, next := range map[string]usage.Window{
		"overlap":    {Boot: "b", Start: 9, End: 20},
		"other boot": {Boot: "c", Start: 10, End: 20},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: merged", name)
				}
			}()
			w := usage.Window{Boot: "b", End: 10}
			w.Merge(&next)
		}()
	}
}
