package wire

import (
	"cmp"
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Prepare returns the window of an agent as it is sent: what Decode returns of it.
// It shares no memory with w. Its rows take the place of those in rows, which may be nil.
//
// Rows of nothing but zeros are left out unless the workload ended: who used
// nothing costs no bytes. Idle and system stay in any case, and so do rows of a
// window that was prepared before. Rows have the totals of the counters and
// integrals that they used.
//
// It panics where a row of a workload that stays has no ShortID.
func Prepare(w *usage.Window, rows []usage.Row) usage.Window {
	sent := *w
	sent.Gaps, sent.Total, sent.Handovers = nil, normalize(&w.Total), handoversOf(w)
	kept := rowsToSend(w.Rows)
	sent.Rows = slices.Grow(rows[:0], len(kept))
	for _, r := range kept {
		sent.Rows = append(sent.Rows, sentRow(r))
	}
	return sent
}

// rowsToSend returns the rows that are sent, in order of their ShortIDs.
func rowsToSend(rows []usage.Row) []*usage.Row {
	kept := make([]*usage.Row, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		prepared := r.Workload == nil
		if prepared || r.Ended || r.Workload.Kind == workload.Idle || r.Workload.Kind == workload.System || !isZero(&r.Usage) {
			kept = append(kept, r)
		}
	}
	slices.SortStableFunc(kept, func(a, b *usage.Row) int { return cmp.Compare(a.ShortID, b.ShortID) })
	return kept
}

// sentRow returns what is sent of a row.
func sentRow(r *usage.Row) usage.Row {
	if r.ShortID == 0 && r.Workload != nil {
		panic(fmt.Sprintf("wire: workload id %q is malformed", r.Workload.ID))
	}
	sent := usage.Row{ShortID: r.ShortID, Usage: normalize(&r.Usage), Ended: r.Ended}
	(r.Has & r.Usage.Present).Each(func(res usage.Resource) {
		if res.Detail().Kind != usage.Peak {
			sent.Has |= usage.SetOf(res)
			sent.Total[res] = r.Total[res]
		}
	})
	return sent
}

// isZero reports whether all amounts are 0.
func isZero(u *usage.Usage) bool {
	some := false
	u.Present.Each(func(r usage.Resource) { some = some || u.Amount[r] != 0 })
	return !some
}

// normalize returns u without what means nothing in it: amounts and qualities of
// what is absent.
func normalize(u *usage.Usage) usage.Usage {
	t := usage.Usage{Present: u.Present, Quality: u.Quality.Only(u.Present), Covered: u.Covered}
	u.Present.Each(func(r usage.Resource) { t.Amount[r] = u.Amount[r] })
	return t
}

// NameOf returns what a row says of its workload's name.
func NameOf(r *usage.Row) batch.Name {
	w := r.Workload
	return batch.Name{ID: w.ID, Kind: w.Kind, Key: w.Key, Name: w.Name, Path: w.Path, Parent: w.Parent}
}
