package batch_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

var resources = []usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak}

func drawUsage(t *rapid.T) (u usage.Usage) {
	for _, r := range resources {
		if rapid.Bool().Draw(t, "present") {
			u.Put(r, rapid.Int64Range(0, 1<<40).Draw(t, "amount"), rapid.SampledFrom([]usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled}).Draw(t, "quality"))
		}
	}
	u.Covered = time.Duration(rapid.IntRange(0, 10).Draw(t, "covered")) * time.Second
	return u
}

// drawWindows returns windows in order, in which Totals are whole or left out.
func drawWindows(t *rapid.T, n int) []batch.Window {
	at := int64(0)
	sums := map[batch.ShortID][usage.Limit]int64{}
	ws := make([]batch.Window, n)
	for i := range ws {
		w := &ws[i]
		at += rapid.Int64Range(0, 5).Draw(t, "pause")
		w.Boot, w.Start, w.Offset, w.CPUs = "b", at, int64(i), i+1
		at += rapid.Int64Range(1, 10).Draw(t, "length")
		w.End = at
		w.Opening = usage.StartReason(i % 4)
		w.Total = drawUsage(t)
		for j := range w.Balance.Whole {
			w.Balance.Whole[j] = rapid.Int64Range(0, 100).Draw(t, "whole")
			w.Balance.Skew[j] = rapid.Int64Range(-100, 100).Draw(t, "skew")
		}
		for _, short := range rapid.SliceOfNDistinct(rapid.Uint64Range(1, 4), 0, 4, rapid.ID).Draw(t, "rows") {
			row := batch.Row{Workload: batch.ShortID(short), Usage: drawUsage(t), Ended: rapid.Bool().Draw(t, "ended")}
			sum, known := sums[row.Workload]
			for r := range sum {
				if usage.Resource(r) != usage.MemoryPeak {
					sum[r] += row.Usage.Amount[r]
				}
			}
			sums[row.Workload] = sum
			if !known || rapid.Bool().Draw(t, "total") {
				row.Has = usage.SetOf(usage.CPU, usage.Memory)
				row.Total[usage.CPU], row.Total[usage.Memory] = sum[usage.CPU], sum[usage.Memory]
			}
			w.Rows = append(w.Rows, row)
		}
	}
	return ws
}

func clone(w batch.Window) batch.Window {
	w.Rows = append([]batch.Row(nil), w.Rows...)
	return w
}

func merged(ws ...batch.Window) batch.Window {
	sum := clone(ws[0])
	for i := range ws[1:] {
		sum.Merge(&ws[1+i])
	}
	return sum
}

func TestMergeIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t, 3)
		left := merged(merged(ws[0], ws[1]), ws[2])
		right := merged(ws[0], merged(ws[1], ws[2]))
		if d := cmp.Diff(left, right); d != "" {
			t.Fatalf("(a+b)+c against a+(b+c):\n%s", d)
		}
	})
}

func TestMergeLosesAndDoublesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t, rapid.IntRange(1, 6).Draw(t, "windows"))
		before := make([]batch.Window, len(ws))
		for i := range ws {
			before[i] = clone(ws[i])
		}
		sum := merged(ws...)
		if d := cmp.Diff(before, ws); d != "" {
			t.Fatalf("what was merged changed:\n%s", d)
		}
		first, last := ws[0], ws[len(ws)-1]
		if sum.Start != first.Start || sum.End != last.End || sum.Offset != last.Offset || sum.CPUs != last.CPUs || sum.Opening != first.Opening {
			t.Fatalf("%+v from %+v to %+v", sum, first, last)
		}
		want := map[batch.ShortID]*usage.Usage{}
		totals := map[batch.ShortID]int64{}
		ended := map[batch.ShortID]bool{}
		var total usage.Usage
		var balance usage.Balance
		rows := 0
		for i := range ws {
			total.Add(&ws[i].Total)
			balance.Add(&ws[i].Balance)
			for j := range ws[i].Rows {
				row := &ws[i].Rows[j]
				if want[row.Workload] == nil {
					want[row.Workload] = &usage.Usage{}
					rows++
				}
				want[row.Workload].Add(&row.Usage)
				totals[row.Workload] += row.Usage.Amount[usage.CPU]
				ended[row.Workload] = row.Ended
			}
		}
		if len(sum.Rows) != rows || sum.Total != total || sum.Balance != balance {
			t.Fatalf("%d rows, want %d; total %v, want %v", len(sum.Rows), rows, sum.Total, total)
		}
		for _, row := range sum.Rows {
			if row.Usage != *want[row.Workload] || row.Ended != ended[row.Workload] {
				t.Errorf("workload %v: %+v, want %+v", row.Workload, row.Usage, *want[row.Workload])
			}
			if row.Total[usage.CPU] != totals[row.Workload] {
				t.Errorf("workload %v: total %d, want %d", row.Workload, row.Total[usage.CPU], totals[row.Workload])
			}
		}
	})
}

func TestMergeRefusesOverlap(t *testing.T) {
	for name, next := range map[string]batch.Window{
		"overlap":    {Boot: "b", Start: 9, End: 20},
		"other boot": {Boot: "c", Start: 10, End: 20},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: merged", name)
				}
			}()
			w := batch.Window{Boot: "b", End: 10}
			w.Merge(&next)
		}()
	}
}
