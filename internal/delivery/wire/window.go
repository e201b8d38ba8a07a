package wire

import (
	"cmp"
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Prepare returns the window of an agent as it is sent. Its rows are the first of w.Rows, which it
// puts in another order, so that it needs no second copy of them.
//
// Rows of nothing but zeros are left out unless the workload ended: who used
// nothing costs no bytes. Idle and system stay in any case, and so do rows without a
// Workload. Rows have the totals of the counters and integrals that they used.
//
// It panics where a row that stays has a Workload and no ShortID.
func Prepare(w *usage.Window) usage.Window {
	sent := *w
	sent.Gaps, sent.Handovers = nil, handoversOf(w)
	order, kept := orderToSend(w.Rows)
	reorder(w.Rows, order)
	sent.Rows = w.Rows[:kept:kept]
	for i := range sent.Rows {
		r := &sent.Rows[i]
		if r.ShortID == 0 && r.Workload != nil {
			panic(fmt.Sprintf("wire: workload id %q is malformed", r.Workload.ID))
		}
		r.Has &= r.Usage.Present & summed
	}
	return sent
}

// summed are the resources whose amounts add up, so that rows have totals of them.
var summed = func() (s usage.Set) {
	usage.All.Each(func(r usage.Resource) {
		if r.Detail().Kind != usage.Peak {
			s |= usage.SetOf(r)
		}
	})
	return s
}()

// orderToSend returns the indexes of rows: first of those that are sent, in order of their ShortIDs, then
// of the others; kept is how many are sent.
func orderToSend(rows []usage.Row) (order []int32, kept int) {
	order = make([]int32, len(rows))
	end := len(rows)
	for i := range rows {
		r := &rows[i]
		if r.Workload == nil || r.Ended || r.Workload.Kind == workload.Idle || r.Workload.Kind == workload.System || !isZero(&r.Usage) {
			order[kept] = int32(i)
			kept++
		} else {
			end--
			order[end] = int32(i)
		}
	}
	slices.SortStableFunc(order[:kept], func(a, b int32) int { return cmp.Compare(rows[a].ShortID, rows[b].ShortID) })
	return order, kept
}

// reorder moves the row order[i] to i, for each i. It changes order.
func reorder(rows []usage.Row, order []int32) {
	for i := range order {
		if int(order[i]) == i {
			continue
		}
		first := rows[i]
		for at := i; ; {
			from := int(order[at])
			order[at] = int32(at)
			if from == i {
				rows[at] = first
				break
			}
			rows[at] = rows[from]
			at = from
		}
	}
}

// isZero reports whether all amounts are 0.
func isZero(u *usage.Usage) bool {
	some := false
	u.Present.Each(func(r usage.Resource) { some = some || u.Amount[r] != 0 })
	return !some
}

// NameOf returns what a row says of its workload's name.
func NameOf(r *usage.Row) batch.Name {
	w := r.Workload
	return batch.Name{ID: w.ID, Kind: w.Kind, Key: w.Key, Name: w.Name, Path: w.Path, Parent: w.Parent}
}
