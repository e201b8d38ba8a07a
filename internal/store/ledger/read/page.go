package read

import (
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/query"
)

// A workloadPage bounds a list of workloads while it is read: those with the lowest keys after one.
type workloadPage struct {
	after string
	limit int // 0 is all
}

// page returns the page of workloads that the query requests.
func (s *selection) page() workloadPage { return workloadPage{s.q.After, s.q.Limit} }

// prune removes from found what is not in the page, if that is many: a page never holds more than
// twice its limit, or a thousand more. A workload that it removes may be found again, and is removed again then.
func (p workloadPage) prune(found map[int64]*query.Workload) {
	if p.limit > 0 && len(found) >= p.limit+max(lookupSize, p.limit/2) {
		p.cut(found)
	}
}

// cut removes from found what is not in the page, and returns the ids of the rest in the order of keys.
func (p workloadPage) cut(found map[int64]*query.Workload) []int64 {
	keys := make(map[int64]string, len(found))
	for id, w := range found {
		if key := w.PageKey(); key > p.after {
			keys[id] = key
		} else {
			delete(found, id)
		}
	}
	ids := slices.SortedFunc(maps.Keys(keys), func(a, b int64) int { return strings.Compare(keys[a], keys[b]) })
	if p.limit > 0 && len(ids) > p.limit {
		for _, id := range ids[p.limit:] {
			delete(found, id)
		}
		ids = ids[:p.limit]
	}
	return ids
}
