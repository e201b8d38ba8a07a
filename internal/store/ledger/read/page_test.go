package read

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/query"
)

// TestWorkloadPage checks that pruning while workloads are found leaves the page, also where they are
// found again, and that few are held at once.
func TestWorkloadPage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all = 4_000
		p := &workloadPage{key: (*query.Workload).PageKey, found: map[int64]*query.Workload{}, limit: rapid.SampledFrom([]int{1, 10, 1100, 2500}).Draw(t, "limit")}
		if rapid.Bool().Draw(t, "runs") {
			p.key = (*query.Workload).RunKey
		}
		workload := func(id int64) *query.Workload {
			w := &query.Workload{Row: id, Node: "n"}
			w.ID = "w"
			w.Name.Name = fmt.Sprintf("%05d", id)
			w.Started = time.Unix(all-id, 0) // the latest first
			return w
		}
		after := rapid.Int64Range(-1, all).Draw(t, "after")
		if after >= 0 {
			p.after = p.key(workload(after))
		}
		step := rapid.SampledFrom([]int{1, 7919, all - 1}).Draw(t, "step") // orders in which they are found
		at := 0
		for range all * 2 {
			id := int64(at)
			at = (at + step) % all
			if p.found[id] == nil {
				p.add(workload(id))
			}
			if most := p.limit + max(lookupSize, p.limit/2); len(p.found) > most {
				t.Fatalf("%d are held, want %d at most", len(p.found), most)
			}
		}
		var want []int64
		for id := int64(0); id < all && len(want) < p.limit; id++ {
			if id > after {
				want = append(want, id)
			}
		}
		if got := p.cut(); !slices.Equal(got, want) || !slices.Equal(slices.Sorted(maps.Keys(p.found)), want) {
			t.Fatalf("the page has %d workloads, want %d", len(got), len(want))
		}
	})
}
