package read

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A groupIndex says to which group of a question each workload belongs: for all
// questions with the same dimensions and filters, whatever their range.
type groupIndex struct {
	mu      sync.Mutex
	rev     int64 // up to which changes of workloads are known
	members map[int64]member
	keys    map[string]*groupKey
	used    int64
}

// A member is a workload; key is nil where it was not asked for.
type member struct {
	node int64
	key  *groupKey
}

// A groupKey is the values of a group's dimensions, and its name.
type groupKey struct {
	name string
	keys []string
}

const (
	maxIndexes = 12
	maxIndexed = 200_000 // workloads; beyond it all is forgotten, and looked up again
	pageSize   = 1 << 8
	lookupSize = 1000 // how many workloads are looked up at a time
	maxPages   = 1 << 13
)

func newGroupIndex(rev int64) *groupIndex {
	return &groupIndex{rev: rev, members: map[int64]member{}, keys: map[string]*groupKey{}}
}

// rolls are those of the latest questions.
type groupIndexes struct {
	mu   sync.Mutex
	all  map[[sha256.Size]byte]*groupIndex
	uses int64
}

// of is the index for a selection.
func (r *groupIndexes) find(s *selection) (*groupIndex, error) {
	var nodes string
	// What nodes are called, and where they are, is part of what keys say.
	err := s.v.SQL.QueryRowContext(s.v.Ctx, `SELECT coalesce(group_concat(id || char(1) || node_id || char(1) || name || char(1) || cluster, char(2)), '')
		FROM (SELECT id, node_id, name, cluster FROM node ORDER BY id)`).Scan(&nodes)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %q", s.keys, s.joins, s.where, fmt.Sprintf("%#v", s.args[2:]), s.q.By, s.q.Scope.Clusters)
	_, _ = h.Write([]byte(nodes)) // it always takes all
	key := [sha256.Size]byte(h.Sum(nil))
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.all[key]
	if found == nil {
		found = newGroupIndex(s.v.Rev)
		r.all[key] = found
	}
	r.uses++
	found.used = r.uses
	if len(r.all) > maxIndexes {
		oldest := key
		for k, e := range r.all {
			if e.used < r.all[oldest].used {
				oldest = k
			}
		}
		delete(r.all, oldest)
	}
	return found, nil
}

// clear drops all, as revisions mean something else now.
func (r *groupIndexes) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.all)
}

// refresh forgets what has changed up to the moment of a view. Where the index is of
// a later one it returns another.
func (r *groupIndex) refresh(v *db.View) (*groupIndex, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.rev == v.Rev:
		return r, nil
	case r.rev > v.Rev:
		return newGroupIndex(v.Rev), nil
	}
	changed, err := db.Ints(v.Ctx, v.SQL, "SELECT id FROM workload WHERE rev > $1", r.rev)
	if err != nil {
		return nil, err
	}
	if len(r.members) > maxIndexed {
		clear(r.members)
		clear(r.keys)
	}
	for _, id := range changed {
		delete(r.members, id)
	}
	r.rev = v.Rev
	return r, nil
}

// lookUp finds workloads, and looks those up that are not known. It returns nil
// where the index is not of the selection's moment any more.
func (r *groupIndex) lookUp(s *selection, ids []int64) ([]member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rev != s.v.Rev {
		return nil, nil
	}
	out := make([]member, len(ids))
	unknown := map[int64][]int{}
	var list []int64
	for i, id := range ids {
		m, ok := r.members[id]
		if out[i] = m; !ok {
			if unknown[id] == nil {
				list = append(list, id)
			}
			unknown[id] = append(unknown[id], i)
		}
	}
	keys := make([]string, len(s.keys))
	var id, node int64
	into := []any{&id, &node}
	for i := range keys {
		into = append(into, &keys[i])
	}
	for some := range slices.Chunk(list, lookupSize) {
		found := make(map[int64]member, len(some))
		text := fmt.Sprintf("SELECT w.id, n.id, %s FROM workload w JOIN node n ON n.id = w.node%s WHERE w.id IN (%s)%s",
			strings.Join(s.keys, ", "), s.joins, schema.JoinInts(some), s.where)
		err := db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
			err := scan(into...)
			for _, i := range s.nodeKeys {
				keys[i] = s.nodeNames[node]
			}
			found[id] = member{node, r.key(keys)}
			return err
		}, text, s.args...)
		if err != nil {
			return nil, err
		}
		for _, id := range some {
			r.members[id] = found[id]
			for _, i := range unknown[id] {
				out[i] = found[id]
			}
		}
	}
	return out, nil
}

// key is the one of some keys.
func (r *groupIndex) key(keys []string) *groupKey {
	name := groupName(keys)
	k := r.keys[name]
	if k == nil {
		k = &groupKey{name, slices.Clone(keys)}
		r.keys[name] = k
	}
	return k
}
