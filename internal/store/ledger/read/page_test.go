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
		p := &workloadPage{key: (*query.Workload).PageKey, found: map[int64]*query.Workload{}, latest: map[int64]foundVersion{}, limit: rapid.SampledFrom([]int{1, 10, 1100, 2500}).Draw(t, "limit")}
		started := all // how many of them have a start
		if rapid.Bool().Draw(t, "runs") {
			p.key = (*query.Workload).RunKey
			started = rapid.SampledFrom([]int{0, 5, all}).Draw(t, "started")
		}
		workload := func(id int64) *query.Workload {
			w := &query.Workload{Row: id, Node: "n"}
			w.ID = "w"
			w.Name.Name = fmt.Sprintf("%05d", id)
			if id < int64(started) {
				w.Started = time.Unix(all-id, 0) // the latest first
			} else if started < all { // runs, the latest row first
				w.Name.Name = "job"
			}
			return w
		}
		at := func(place int64) int64 { // in the order of keys
			if place < int64(started) {
				return place
			}
			return all - 1 - (place - int64(started))
		}
		after := rapid.Int64Range(-1, all-1).Draw(t, "after")
		if after >= 0 {
			p.after = p.key(workload(at(after)))
		}
		step := rapid.SampledFrom([]int{1, 7919, all - 1}).Draw(t, "step") // orders in which they are found
		next := 0
		for range all * 2 {
			id := int64(next)
			next = (next + step) % all
			if p.found[id] == nil {
				p.add(workload(id), foundVersion{row: id})
			}
			if most := p.limit + max(lookupSize, p.limit/2); len(p.found) > most {
				t.Fatalf("%d are held, want %d at most", len(p.found), most)
			}
		}
		var want []int64
		for place := after + 1; place < all && len(want) < p.limit; place++ {
			want = append(want, at(place))
		}
		if got := p.cut(); !slices.Equal(got, want) || !slices.Equal(slices.Sorted(maps.Keys(p.found)), slices.Sorted(slices.Values(want))) {
			t.Fatalf("the page has %d workloads, want %d", len(got), len(want))
		}
	})
}
