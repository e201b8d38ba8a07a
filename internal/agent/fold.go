package agent

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// maxEnded is how many workloads that ended a window shows each by itself. On an
// ordinary machine no window of ten seconds has as many. One that is held for
// hours, as the disk is full, may, and has to fit into a batch all the same.
const maxEnded = 5000

// foldEnded books what the workloads used that ended first, all but the last most of
// those that ended, to the nearest one above that stays, or to system: as it is
// done where nobody saw them. So the sums stay what they are.
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
	at := make(map[workload.ID]int, len(w.Rows)) // the row that stays
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
		return // every window has it
	}
	for i := range w.Rows {
		if !folded[i] {
			continue
		}
		to := system
		id := w.Rows[i].Workload.Parent
		for range len(up) + 1 { // rows say of each other who is above; none is above itself
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

// addUsage books to u what another one used. A peak is of one workload, and not
// another's.
func addUsage(u, of *usage.Usage) {
	of.Present.Each(func(r usage.Resource) {
		if r.Detail().Kind != usage.Peak {
			u.Put(r, of.Amount[r], max(of.Quality.Get(r), usage.Apportioned))
		}
	})
}
