package agent

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// maxEnded is how many ended workloads a window lists individually. A window of ten seconds rarely
// has as many. One that is held for hours because the disk is full may have, and must fit into a
// batch.
const maxEnded = 5000

// foldEnded books the use of ended workloads to their nearest remaining ancestor, or to system, as
// if the meter had not observed them, until no more than most of them remain. It folds those that
// ended first. The sums stay the same.
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
	for i := range w.Rows {
		if !folded[i] {
			continue
		}
		to := system
		id := w.Rows[i].Workload.Parent
		for range len(up) + 1 { // rows name each other as parents; the limit guards against cycles
			if k, ok := at[id]; ok {
				to = k
				break
			}
			id = up[id]
		}
		addUsage(&w.Rows[to].Usage, &w.Rows[i].Usage)
	}
	kept := w.Rows[:0]
	for i := range w.Rows {
		if !folded[i] {
			kept = append(kept, w.Rows[i])
		}
	}
	clear(w.Rows[len(kept):])
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
