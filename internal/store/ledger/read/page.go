package read

import (
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/query"
)

// A workloadPage is a part of a list of workloads while it is read: those with the lowest keys after one.
type workloadPage struct {
	after string
	limit int                          // 0 is all
	key   func(*query.Workload) string // unique, and the same whenever a workload is found
	found map[int64]*query.Workload
}

// newPage returns the page of workloads that the query requests, without any.
func (s *selection) newPage(key func(*query.Workload) string) *workloadPage {
	return &workloadPage{s.q.After, s.q.Limit, key, map[int64]*query.Workload{}}
}

// add adds a workload that was found. A page never holds more than twice its limit, or a thousand more:
// what is not in it is removed before, may be found again, and is removed again then.
func (p *workloadPage) add(w *query.Workload) {
	if p.limit > 0 && len(p.found) >= p.limit+max(lookupSize, p.limit/2) {
		p.cut()
	}
	p.found[w.Row] = w
}

// cut removes what is not in the page, and returns the ids of the rest in the order of keys.
func (p *workloadPage) cut() []int64 {
	keys := make(map[int64]string, len(p.found))
	for id, w := range p.found {
		if key := p.key(w); key > p.after {
			keys[id] = key
		} else {
			delete(p.found, id)
		}
	}
	ids := slices.SortedFunc(maps.Keys(keys), func(a, b int64) int { return strings.Compare(keys[a], keys[b]) })
	if p.limit > 0 && len(ids) > p.limit {
		for _, id := range ids[p.limit:] {
			delete(p.found, id)
		}
		ids = ids[:p.limit]
	}
	return ids
}
