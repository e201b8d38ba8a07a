package usage

import (
	"slices"
	"time"

	"mete.dev/mete/internal/model/workload"
)

// Merge adds the window after w to w, which then spans both: what workloads
// used adds, row by row of the same workload and life, and of peaks the higher
// stays. It shares no memory with next. Windows of two boots do not merge: that
// is a defect, and panics.
func (w *Window) Merge(next *Window) {
	if w.Boot != next.Boot {
		panic("meter: windows of two boots do not merge")
	}
	w.setOffset(next.Offset)
	w.End, w.CPUs = next.End, next.CPUs
	w.Gaps = append(slices.Clip(w.Gaps), next.Gaps...)
	w.Total.Add(&next.Total)
	w.Balance.Add(&next.Balance)
	w.Handovers = MergeHandovers(w.Handovers, next.Handovers, w.End-w.Start)

	// Who is not in next has ended. Those stand first, as they do in any
	// window, so that system and idle stay last.
	type key struct {
		id   workload.ID
		life workload.Life
	}
	at := make(map[key]int, len(next.Rows))
	for i := range next.Rows {
		at[key{next.Rows[i].Workload.ID, next.Rows[i].Life}] = i
	}
	before := make([]Usage, len(next.Rows))
	rows := make([]Row, 0, len(w.Rows)+len(next.Rows))
	for i := range w.Rows {
		r := &w.Rows[i]
		if j, ok := at[key{r.Workload.ID, r.Life}]; ok {
			before[j].Add(&r.Usage)
		} else {
			rows = append(rows, *r)
		}
	}
	for j := range next.Rows {
		r := next.Rows[j]
		r.Usage.Add(&before[j])
		rows = append(rows, r)
	}
	w.Rows = rows
}

// setOffset gives w another offset, by which its gaps are told too: they stay beside it.
// What is of the boot before keeps the time that that one went by.
func (w *Window) setOffset(offset int64) {
	by := time.Duration(offset - w.Offset)
	w.Offset = offset
	if by == 0 {
		return
	}
	w.Gaps = slices.Clone(w.Gaps)
	for i := range w.Gaps {
		g := &w.Gaps[i]
		g.To = g.To.Add(by)
		if g.Reason != Rebooted {
			g.From = g.From.Add(by)
		} else if g.From.After(g.To) {
			g.From = g.To
		}
	}
}

// Clone returns a copy of w that shares no memory with it.
func (w *Window) Clone() *Window {
	c := *w
	c.Gaps, c.Rows, c.Handovers = slices.Clone(w.Gaps), slices.Clone(w.Rows), cloneHandovers(w.Handovers)
	return &c
}
