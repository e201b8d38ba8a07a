package read

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A groupIndex maps each workload to its group, for all queries with the same dimensions and
// filters, whatever their range.
type groupIndex struct {
	mu      sync.Mutex
	rev     int64 // changes of workloads up to it are applied
	most    int   // members; beyond it the index is cleared
	members map[int64]member
	keys    map[string]*groupKey
	used    int64
}

// A member is a workload; key is nil if the filters exclude it.
type member struct {
	node int64
	key  *groupKey
}

// A groupKey is the values of a group's dimensions, and its name in a groupSet.
type groupKey struct {
	name string
	keys []string
}

const (
	maxIndexes = 12
	maxIndexed = 200_000 // workloads of an index
	pageSize   = 250
	lookupSize = 1000 // workloads per query
	maxPages   = 8000
)

func newGroupIndex(rev int64) *groupIndex {
	return &groupIndex{rev: rev, most: maxIndexed, members: map[int64]member{}, keys: map[string]*groupKey{}}
}

// groupIndexes holds the indexes of the latest queries.
type groupIndexes struct {
	mu   sync.Mutex
	all  map[[sha256.Size]byte]*groupIndex
	uses int64
}

// find returns the index for a selection.
func (g *groupIndexes) find(s *selection) (*groupIndex, error) {
	var nodes string
	// Keys contain names and clusters of nodes, so these are part of the cache key.
	err := s.v.SQL.QueryRowContext(s.v.Ctx, `SELECT coalesce(group_concat(id || char(1) || node_id || char(1) || name || char(1) || cluster, char(2)), '')
		FROM (SELECT id, node_id, name, cluster FROM node ORDER BY id)`).Scan(&nodes)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %q", s.keys, s.joins, s.where, fmt.Sprintf("%#v", s.args[2:]), s.q.By, s.q.Scope.Clusters)
	_, _ = h.Write([]byte(nodes)) // never fails
	key := [sha256.Size]byte(h.Sum(nil))
	g.mu.Lock()
	defer g.mu.Unlock()
	found := g.all[key]
	if found == nil {
		found = newGroupIndex(s.v.Rev)
		g.all[key] = found
	}
	g.uses++
	found.used = g.uses
	if len(g.all) > maxIndexes {
		delete(g.all, leastUsed(g.all, func(e *groupIndex) int64 { return e.used }))
	}
	return found, nil
}

// clear drops all indexes: after a restore, revisions have another meaning.
func (g *groupIndexes) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.all)
}

// refresh drops the workloads that changed up to a view's revision. If the index is of a later
// revision it returns a new one.
func (g *groupIndex) refresh(v *db.View) (*groupIndex, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch cmp.Compare(g.rev, v.Rev) {
	case 0:
		return g, nil
	case 1:
		return newGroupIndex(v.Rev), nil
	}
	changed, err := db.Ints(v.Ctx, v.SQL, "SELECT id FROM workload WHERE rev > $1", g.rev)
	if err != nil {
		return nil, err
	}
	if len(g.members) > g.most {
		clear(g.members)
		clear(g.keys)
	}
	for _, id := range changed {
		delete(g.members, id)
	}
	g.rev = v.Rev
	return g, nil
}

// lookUp returns the members for workloads, querying unknown ones. It returns nil if the index is
// no longer at the selection's revision.
func (g *groupIndex) lookUp(s *selection, ids []int64) ([]member, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rev != s.v.Rev {
		return nil, nil
	}
	out := make([]member, len(ids))
	unknown := map[int64][]int{}
	var list []int64
	for i, id := range ids {
		m, ok := g.members[id]
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
			found[id] = member{node, g.key(keys)}
			return err
		}, text, s.args...)
		if err != nil {
			return nil, err
		}
		for _, id := range some {
			g.members[id] = found[id]
			for _, i := range unknown[id] {
				out[i] = found[id]
			}
		}
	}
	return out, nil
}

// key returns the shared groupKey for the values keys.
func (g *groupIndex) key(keys []string) *groupKey {
	name := groupName(keys)
	k := g.keys[name]
	if k == nil {
		k = &groupKey{name, slices.Clone(keys)}
		g.keys[name] = k
	}
	return k
}
