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

// drawSentWindows returns windows as they come over the wire, in order, in which
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
			row := usage.Row{ShortID: workload.ShortID(short), Usage: drawSentUsage(t), Ended: rapid.Bool().Draw(t, "ended")}
			sum, known := sums[row.ShortID]
			for r := range sum {
				if usage.Resource(r) != usage.MemoryPeak {
					sum[r] += row.Usage.Amount[r]
				}
			}
			sums[row.ShortID] = sum
			if !known || rapid.Bool().Draw(t, "total") {
				row.Has = usage.SetOf(usage.CPU, usage.Memory)
				row.Total[usage.CPU], row.Total[usage.Memory] = sum[usage.CPU], sum[usage.Memory]
			}
			w.Rows = append(w.Rows, row)
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
		ws := drawSentWindows(t, rapid.IntRange(1, 6).Draw(t, "windows"))
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
		want := map[workload.ShortID]*usage.Usage{}
		totals := map[workload.ShortID]int64{}
		ended := map[workload.ShortID]bool{}
		var total usage.Usage
		var balance usage.Balance
		rows := 0
		for i := range ws {
			total.Add(&ws[i].Total)
			balance.Add(&ws[i].Balance)
			for j := range ws[i].Rows {
				row := &ws[i].Rows[j]
				if want[row.ShortID] == nil {
					want[row.ShortID] = &usage.Usage{}
					rows++
				}
				want[row.ShortID].Add(&row.Usage)
				totals[row.ShortID] += row.Usage.Amount[usage.CPU]
				ended[row.ShortID] = row.Ended
			}
		}
		if len(sum.Rows) != rows || sum.Total != total || sum.Balance != balance {
			t.Fatalf("%d rows, want %d; total %v, want %v", len(sum.Rows), rows, sum.Total, total)
		}
		for _, row := range sum.Rows {
			if row.Usage != *want[row.ShortID] || row.Ended != ended[row.ShortID] {
				t.Errorf("workload %v: %+v, want %+v", row.ShortID, row.Usage, *want[row.ShortID])
			}
			if row.Total[usage.CPU] != totals[row.ShortID] {
				t.Errorf("workload %v: total %d, want %d", row.ShortID, row.Total[usage.CPU], totals[row.ShortID])
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
