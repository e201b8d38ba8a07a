package wire

import (
	"cmp"
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// FromWindow makes a window ready to be sent, with its rows in order of their
// workloads.
//
// Rows of nothing but zeros are left out unless the workload ended: who used
// nothing costs no bytes. Idle and system stay in any case. total says which of
// the rows that stay carry their totals; nil is none of them.
func FromWindow(w *usage.Window, total func(*usage.Row) bool) batch.Window {
	b := batch.Window{
		Boot: w.Boot, Start: w.Start, End: w.End, Offset: w.Offset, Opening: w.StartReason, CPUs: w.CPUs,
		Total: normalize(&w.Total), Balance: w.Balance, Handovers: handoversOf(w),
	}
	kept := make([]shortRow, 0, len(w.Rows))
	for i := range w.Rows {
		row := &w.Rows[i]
		if !row.Ended && row.Workload.Kind != workload.Idle && row.Workload.Kind != workload.System && isZero(&row.Usage) {
			continue
		}
		short, ok := batch.ShortIDOf(row.Workload.ID)
		if !ok {
			panic(fmt.Sprintf("wire: workload id %q is malformed", row.Workload.ID))
		}
		kept = append(kept, shortRow{short, row})
	}
	slices.SortStableFunc(kept, func(x, y shortRow) int { return cmp.Compare(x.short, y.short) })
	b.Rows = make([]batch.Row, len(kept))
	for i, k := range kept {
		b.Rows[i] = batch.Row{Workload: k.short, Usage: normalize(&k.row.Usage), Ended: k.row.Ended}
		if total != nil && total(k.row) {
			setTotals(&b.Rows[i], k.row)
		}
	}
	return b
}

// A shortRow row is one of a window with the short name that it is sent by.
type shortRow struct {
	short batch.ShortID
	row   *usage.Row
}

// setTotals gives r the totals of what adds up; a peak has none.
func setTotals(r *batch.Row, of *usage.Row) {
	of.Usage.Present.Each(func(res usage.Resource) {
		if res.Detail().Kind != usage.Peak {
			r.Has |= usage.SetOf(res)
			r.Total[res] = of.Total[res]
		}
	})
}

// isZero says whether all amounts are 0.
func isZero(u *usage.Usage) bool {
	some := false
	u.Present.Each(func(r usage.Resource) { some = some || u.Amount[r] != 0 })
	return !some
}

// normalize is u without what means nothing in it: amounts and qualities of what is
// absent.
func normalize(u *usage.Usage) usage.Usage {
	t := usage.Usage{Present: u.Present, Covered: u.Covered}
	u.Present.Each(func(r usage.Resource) {
		t.Amount[r] = u.Amount[r]
		t.Quality.Set(r, u.Quality.Get(r))
	})
	return t
}

// NameOf is what a row says of its workload's name.
func NameOf(r *usage.Row) batch.Name {
	w := &r.Workload
	return batch.Name{ID: w.ID, Kind: w.Kind, Key: w.Key, Name: w.Name, Path: w.Path, Parent: r.Parent}
}
