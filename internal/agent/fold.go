package agent

import (
	"slices"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// maxEnded is how many ended workloads a window lists individually. A window of ten seconds rarely
// has as many. One that is held for hours because the disk is full may have, and must fit into a
// batch.
const maxEnded = 5000

// foldEnded books the use of ended workloads to their nearest remaining ancestor, or to system, as
// if the agent had not observed them, until no more than most of them remain. It folds those that
// ended first. The sums stay the same. An ancestor gets this use as a further row, of a life that began and
// ended in the window, since the ancestor's totals do not count it.
func foldEnded(w *usage.Window, most int) {
	excess := -most
	for i := range w.Rows {
		if w.Rows[i].Ended {
			excess++
		}
	}
	if excess <= 0 {
		return
	}
	folded := make([]bool, len(w.Rows))
	at := make(map[workload.ID]int, len(w.Rows)) // index of the row that stays
	up := make(map[workload.ID]workload.ID, excess)
	system := -1
	for i := range w.Rows {
		row := &w.Rows[i]
		if row.Ended && excess > 0 {
			excess--
			folded[i] = true
			up[row.Workload.ID] = row.Workload.Parent
			continue
		}
		at[row.Workload.ID] = i
		if row.Workload.Kind == workload.System {
			system = i
		}
	}
	if system < 0 {
		return // never: every window has system
	}
	sums := map[int]*usage.Row{} // what is folded, by the index of the row that it belongs to
	for i := range w.Rows {
		if !folded[i] {
			continue
		}
		to := system
		id := w.Rows[i].Workload.ID // another life of it may stay
		for range len(up) + 2 {     // rows name each other as parents; the limit guards against cycles
			if k, ok := at[id]; ok {
				to = k
				break
			}
			id = up[id]
		}
		if sums[to] == nil {
			sums[to] = &usage.Row{ShortID: w.Rows[to].ShortID, Workload: w.Rows[to].Workload, Ended: true}
		}
		addUsage(&sums[to].Usage, &w.Rows[i].Usage)
		sums[to].Connections = connection.Merged(sums[to].Connections, w.Rows[i].Connections)
	}
	kept := make([]usage.Row, 0, len(w.Rows))
	for i := range w.Rows {
		if folded[i] {
			continue
		}
		sum := sums[i]
		if sum == nil || sum.Usage.Present == 0 {
			kept = append(kept, w.Rows[i])
			continue
		}
		sum.Has, sum.Total = sum.Usage.Present, sum.Usage.Amount
		if w.Rows[i].Ended { // of one workload, the row of the life that goes on comes last
			kept = append(kept, w.Rows[i], *sum)
		} else {
			kept = append(kept, *sum, w.Rows[i])
		}
	}
	w.Rows = slices.Clip(kept)
}

// addUsage adds use to u. Peaks are not added: they belong to one workload.
func addUsage(u, of *usage.Usage) {
	of.Present.Each(func(r usage.Resource) {
		if r.Detail().Kind != usage.Peak {
			u.Put(r, of.Amount[r], max(of.Quality.Get(r), usage.Apportioned))
		}
	})
}
