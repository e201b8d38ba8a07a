package agent

import (
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestFold checks that folding changes no sum, keeps living workloads, system and idle in place,
// and keeps as many ended ones as requested.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w usage.Window
		n := rapid.IntRange(0, 20).Draw(t, "rows")
		id := func(i int) workload.ID { return workload.NewID("n", workload.Service, string(rune('a'+i))) }
		var sum usage.Usage
		ended := 0
		for i := range n {
			r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: id(i), Kind: workload.Service}})
			r.Ended = rapid.Bool().Draw(t, "ended")
			if p := rapid.IntRange(-1, n-1).Draw(t, "parent"); p >= 0 && p != i {
				r.Workload.Parent = id(p) // including cycles, which no machine has
			}
			if r.Ended {
				ended++
			}
			w.Rows = append(w.Rows, r)
		}
		for _, k := range []workload.Kind{workload.System, workload.Idle} {
			w.Rows = append(w.Rows, usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", k, ""), Kind: k}}))
		}
		before := map[workload.ID]usage.Usage{}
		for i := range w.Rows {
			u := &w.Rows[i].Usage
			for _, r := range []usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak} {
				if v := rapid.Int64Range(-1, 1000).Draw(t, "amount"); v >= 0 {
					u.Put(r, v, usage.Measured)
				}
			}
			sum.Add(u)
			before[w.Rows[i].Workload.ID] = *u
		}
		lives := len(w.Rows) - ended
		most := rapid.IntRange(0, 10).Draw(t, "most")
		foldEnded(&w, most)

		var after usage.Usage
		left, sums := 0, 0
		for i := range w.Rows {
			r := &w.Rows[i]
			after.Add(&r.Usage)
			if r.Has != 0 { // of what was folded
				sums++
				if !r.IsWholeLife() || r.Usage.Present.Has(usage.MemoryPeak) || r.Usage.Present.Has(usage.CPU) && r.Usage.Quality.Get(usage.CPU) != usage.Apportioned {
					t.Errorf("folded: %+v", r)
				}
				continue
			}
			if r.Ended {
				left++
			}
			if r.Usage != before[r.Workload.ID] {
				t.Errorf("%+v, before %+v", r.Usage, before[r.Workload.ID])
			}
		}
		for _, r := range []usage.Resource{usage.CPU, usage.Memory} {
			if after.Amount[r] != sum.Amount[r] || after.Present.Has(r) != sum.Present.Has(r) {
				t.Errorf("%v: %d after, %d before", r, after.Amount[r], sum.Amount[r])
			}
		}
		if want := min(ended, most); left != want || len(w.Rows)-left-sums != lives {
			t.Errorf("%d ended and %d live, want %d and %d", left, len(w.Rows)-left-sums, want, lives)
		}
		if k := w.Rows[len(w.Rows)-1].Workload.Kind; k != workload.Idle {
			t.Errorf("the last row is of kind %v", k)
		}
	})
}

// TestFoldUp checks that ended workloads are folded into the nearest remaining ancestor.
func TestFoldUp(t *testing.T) {
	w := window("-child -parent pod")
	w.Rows[0].Workload.Parent, w.Rows[1].Workload.Parent = w.Rows[1].Workload.ID, w.Rows[2].Workload.ID
	w.Rows = append(w.Rows, usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: "s", Kind: workload.System}}))
	for i := range 3 {
		w.Rows[i].Usage.Put(usage.CPU, int64(1)<<i, usage.Measured)
	}
	for i := range 2 {
		w.Rows[i].Connections = &connection.Sketch{Missed: int64(i + 1)}
	}
	for range 2 { // again: what was folded stays there
		foldEnded(w, 0)
		if len(w.Rows) != 3 || w.Rows[0].ShortID != w.Rows[1].ShortID || w.Rows[0].Usage.Amount[usage.CPU] != 3 || !w.Rows[0].IsWholeLife() || w.Rows[1].Usage.Amount[usage.CPU] != 4 || w.Rows[1].Ended || w.Rows[0].Connections == nil || w.Rows[0].Connections.Missed != 3 {
			t.Errorf("rows %+v, want all in the pod", w.Rows)
		}
	}
}
