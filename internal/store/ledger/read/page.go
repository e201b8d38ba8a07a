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
	found map[int64]*query.Workload    // by the row of the first version, or of each
	// latest are the latest versions that were found.
	latest map[int64]foundVersion
	// runs says that runs are listed: each version of one apart, as they are of several jobs, and once the run that several
	// workloads are parts of.
	runs bool
}

// A foundVersion is a version of a workload: its row, and the minute with which it begins.
type foundVersion struct{ row, from int64 }

// newPage returns the page of workloads that the query requests, without any.
func (s *selection) newPage(key func(*query.Workload) string) *workloadPage {
	return &workloadPage{s.q.After, s.q.Limit, key, map[int64]*query.Workload{}, map[int64]foundVersion{}, false}
}

// add adds a workload, of which a version with rows in a span was found. A page never holds more than twice its limit, or
// a thousand more: what is not in it is removed before, may be found again, and is removed again then.
func (p *workloadPage) add(w *query.Workload, v foundVersion) {
	if p.runs {
		w.Row = v.row
		w = asRun(w)
	}
	have := p.found[w.Row]
	switch {
	case have == nil:
		if p.limit > 0 && len(p.found) >= p.limit+max(lookupSize, p.limit/2) {
			p.cut()
		}
		p.found[w.Row], p.latest[w.Row] = w, v
		return
	case v.from > p.latest[w.Row].from:
		have.Name, p.latest[w.Row] = w.Name, v
	}
	if w.First.Before(have.First) {
		have.First = w.First
	}
	if w.Last.After(have.Last) {
		have.Last = w.Last
	}
}

// cut removes what is not in the page, and returns the ids of the rest in the order of keys.
func (p *workloadPage) cut() []int64 {
	keys := make(map[int64]string, len(p.found))
	for id, w := range p.found {
		if key := p.key(w); key > p.after {
			keys[id] = key
		} else {
			p.remove(id)
		}
	}
	ids := slices.SortedFunc(maps.Keys(keys), func(a, b int64) int { return strings.Compare(keys[a], keys[b]) })
	if p.limit > 0 && len(ids) > p.limit {
		for _, id := range ids[p.limit:] {
			p.remove(id)
		}
		ids = ids[:p.limit]
	}
	return ids
}

func (p *workloadPage) remove(id int64) {
	delete(p.found, id)
	delete(p.latest, id)
}

// addLabels sets the labels of workloads of the page: of few, so only once it is cut.
func (p *workloadPage) addLabels(v *db.View, ids []int64) error {
	of, versions := make(map[int64]*query.Workload, len(ids)), make([]int64, len(ids))
	for i, id := range ids {
		versions[i] = p.latest[id].row
		of[versions[i]] = p.found[id]
	}
	for some := range slices.Chunk(versions, lookupSize) {
		err := db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var id int64
			var key, value string
			if err := scan(&id, &key, &value); err != nil {
				return err
			}
			w := of[id]
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
