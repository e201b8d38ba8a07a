package batch

import (
	"cmp"
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// Merge makes w the sum of w and next, which has to be a later window of the
// same boot. Rows are added by workload; where next brings others, all are put in
// order of their workloads. w keeps no reference to next.
//
// It panics where next does not follow: the sum would overlap with others.
func (w *Window) Merge(next *Window) {
	if next.Boot != w.Boot || next.Start < w.End {
		panic("batch: merged windows are not in order")
	}
	w.End, w.Offset, w.CPUs = next.End, next.Offset, next.CPUs
	w.Total.Add(&next.Total)
	w.Balance.Add(&next.Balance)
	w.Handovers = usage.MergeHandovers(w.Handovers, next.Handovers, w.End-w.Start)
	had := len(w.Rows)
	at := make(map[ShortID]int, had)
	for i := range w.Rows {
		at[w.Rows[i].Workload] = i
	}
	for i := range next.Rows {
		row := &next.Rows[i]
		if k, ok := at[row.Workload]; ok {
			w.Rows[k].merge(row)
			continue
		}
		at[row.Workload] = len(w.Rows)
		w.Rows = append(w.Rows, *row)
	}
	if len(w.Rows) > had {
		slices.SortStableFunc(w.Rows, func(a, b Row) int { return cmp.Compare(a.Workload, b.Workload) })
	}
}

// merge adds what the same workload used in a later window.
func (r *Row) merge(next *Row) {
	// A row without a Total has that of the row before plus its Usage.
	(r.Has &^ next.Has).Each(func(k usage.Resource) {
		if v, ok := next.Usage.Get(k); ok {
			r.Total[k] += v
		}
	})
	next.Has.Each(func(k usage.Resource) { r.Total[k] = next.Total[k] })
	r.Has |= next.Has
	r.Usage.Add(&next.Usage)
	r.Ended = next.Ended
}
