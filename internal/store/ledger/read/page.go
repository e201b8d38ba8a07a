package read

import (
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
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

// addLabels sets the labels of workloads of the page: of few, so only once it is cut.
func (p *workloadPage) addLabels(v *db.View, ids []int64) error {
	for some := range slices.Chunk(ids, lookupSize) {
		err := db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var id int64
			var key, value string
			if err := scan(&id, &key, &value); err != nil {
				return err
			}
			w := p.found[id]
			if w.Labels == nil {
				w.Labels = map[string]string{}
			}
			w.Labels[key] = value
			return nil
		}, "SELECT workload, key, value FROM workload_label WHERE workload IN ("+schema.JoinInts(some)+")")
		if err != nil {
			return err
		}
	}
	return nil
}
