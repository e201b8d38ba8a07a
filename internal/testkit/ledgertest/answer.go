package ledgertest

import (
	"cmp"
	"math/big"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A ledgerBook records what a ledger was sent, to compute the expected answers.
type ledgerBook struct {
	rows  []bookRow
	nodes []*bookNode
	gaps  []bookGap
}

type bookNode struct {
	id, name, cluster string
	minutes           map[int64]*bookMinute
	stays             []bookStay
	// in is its present host's workload, equal the time of its last equal share, and handed
	// that of its last share.
	in            *bookWorkload
	equal, handed time.Time
}

// A bookStay is a minute in which a node was the guest of a host, as a workload there.
type bookStay struct {
	as     *bookWorkload
	minute int64
}

// isGuestOf reports whether a node is another one, or was ever a guest of it.
func (n *bookNode) isGuestOf(o *bookNode) bool {
	return n == o || slices.ContainsFunc(n.stays, func(s bookStay) bool { return s.as.node.isGuestOf(o) })
}

// host returns the workload that a node was on its host in a minute, or nil; of several hosts that
// of the one that was enrolled first.
func (b *ledgerBook) host(n *bookNode, minute int64) (as *bookWorkload) {
	for _, s := range n.stays {
		if s.minute == minute && (as == nil || slices.Index(b.nodes, s.as.node) < slices.Index(b.nodes, as.node)) {
			as = s.as
		}
	}
	return as
}

// recordEqualShare records an equal share of a window that began in a minute and ended at the
// given time.
func (n *bookNode) recordEqualShare(as *bookWorkload, minute int64, at time.Time) {
	if as.node.isGuestOf(n) {
		return
	}
	if n.stays = append(n.stays, bookStay{as, minute}); !at.Before(n.equal) {
		n.in, n.equal = as, at
		if at.After(n.handed) {
			n.handed = at
		}
	}
}

// recordGuestEntry records an entry of a guest, with or without a share of a window that
// ended at the time through.
func (n *bookNode) recordGuestEntry(from, to, through time.Time) {
	if n.in == nil {
		return
	}
	if !to.IsZero() && to.Sub(n.equal) <= 48*time.Hour && !from.Before(n.equal) {
		if to.After(n.handed) {
			n.handed = to
		}
	}
	if through.Sub(n.handed) > time.Hour {
		n.in = nil
	}
}

// A bookMinute is the data of a node in a minute.
type bookMinute struct {
	had     [len(usage.Wholes)]*big.Int // whole and skew
	covered time.Duration
}

type bookWorkload struct {
	node  *bookNode
	short workload.ShortID
	told  batch.Name // once the name is known
	name  batch.Name
	sent  bool // the name was sent
}

type bookRow struct {
	workload *bookWorkload
	minute   int64
	usage    usage.Usage
}

type bookGap struct {
	node     *bookNode
	from, to time.Time
}

// hasTwin reports whether the query sees two nodes of this name.
func (b *ledgerBook) hasTwin(name string, s query.Scope) bool {
	n := 0
	for _, node := range b.nodes {
		if node.name == name && (s.All || len(s.Clusters) == 0 || slices.Contains(s.Clusters, node.cluster)) {
			n++
		}
	}
	return n > 1
}

// value returns the value of a dimension for a workload.
func (b *ledgerBook) value(w *bookWorkload, d query.Dimension, s query.Scope) string {
	n := &w.told
	switch d {
	case query.ByCluster:
		return w.node.cluster
	case query.ByNode:
		if b.hasTwin(w.node.name, s) {
			return w.node.name + " " + w.node.id
		}
		return w.node.name
	case query.ByWorkload:
		return n.Name
	case query.ByJob:
		return cmp.Or(n.Job, n.Name)
	case query.ByKind:
		if n.Kind == workload.Unknown {
			return ""
		}
		return n.Kind.String()
	}
	if n.Kind == workload.Idle || n.Kind == workload.System {
		return n.Kind.String()
	}
	label := func(key string) string {
		if n.Kind == workload.Job && batch.CheckJobLabel(key) != nil {
			return "" // a job does not say which pod it is
		}
		return n.Labels[key]
	}
	switch d {
	case query.ByUser:
		return n.User
	case query.ByProject:
		return n.Project
	case query.ByNamespace:
		return label("io.kubernetes.pod.namespace")
	case query.ByPod:
		return label("io.kubernetes.pod.name")
	case query.ByContainer:
		return label("io.kubernetes.container.name")
	}
	return label(strings.TrimPrefix(string(d), string(query.ByLabel)))
}

// includes reports whether the answer to a query includes a workload.
func (b *ledgerBook) includes(w *bookWorkload, q *query.Query) bool {
	s := q.Scope
	if !s.All && (len(s.Clusters)+len(s.Projects) == 0 ||
		len(s.Clusters) > 0 && !slices.Contains(s.Clusters, w.node.cluster) ||
		len(s.Projects) > 0 && !slices.Contains(s.Projects, w.told.Project)) {
		return false
	}
	for d, values := range q.Where {
		ok := slices.Contains(values, b.value(w, d, s))
		if d == query.ByNode {
			ok = ok || slices.Contains(values, w.node.id) || slices.Contains(values, w.node.name) || slices.Contains(values, w.node.name+" "+w.node.id)
		}
		if !ok {
			return false
		}
	}
	return !q.OmitOwn || !slices.Contains(query.OwnNames, w.told.Name)
}

// excludes reports whether the answer to a query leaves out a node's use in a minute
// because the node is a guest or, in a query about guests only, because it is not.
func (b *ledgerBook) excludes(n *bookNode, minute int64, q *query.Query) bool {
	as := b.host(n, minute)
	nested := as != nil
	if nested {
		h, s := as.node, q.Scope
		if !s.All {
			nested = (len(s.Clusters) == 0 || slices.Contains(s.Clusters, h.cluster)) && (len(s.Projects) == 0 || slices.Contains(s.Projects, as.told.Project))
		}
		if c, ok := q.Where[query.ByCluster]; ok {
			nested = nested && slices.Contains(c, h.cluster)
		}
		if c, ok := q.Where[query.ByNode]; ok {
			nested = nested && (slices.Contains(c, h.id) || slices.Contains(c, h.name) || slices.Contains(c, h.name+" "+h.id))
		}
	}
	return nested != (q.Nested == query.NestedOnly)
}

// A groupTotal is a group of an answer.
type groupTotal struct {
	keys        []string
	nodes       map[*bookNode]bool
	first, last int64 // minutes
	present     usage.Set
	quality     usage.Qualities
	covered     time.Duration
	sums        [usage.Limit]*big.Int
}

// groups returns the groups of a query over the minutes [from, to), those with the most CPU
// time first.
func (b *ledgerBook) groups(q *query.Query, from, to int64) []*groupTotal {
	found := map[string]*groupTotal{}
	for i := range b.rows {
		row := &b.rows[i]
		if row.minute < from || row.minute >= to || !b.includes(row.workload, q) || b.excludes(row.workload.node, row.minute, q) {
			continue
		}
		var keys []string
		for _, d := range q.By {
			keys = append(keys, b.value(row.workload, d, q.Scope))
		}
		k := strings.Join(keys, "\x00")
		g := found[k]
		if g == nil {
			g = &groupTotal{keys: keys, nodes: map[*bookNode]bool{}, first: row.minute}
			for i := range g.sums {
				g.sums[i] = new(big.Int)
			}
			found[k] = g
		}
		g.nodes[row.workload.node] = true
		g.first, g.last = min(g.first, row.minute), max(g.last, row.minute+1)
		g.covered += row.usage.Covered.Round(time.Millisecond)
		g.present |= row.usage.Present
		row.usage.Present.Each(func(r usage.Resource) {
			g.quality.Worsen(r, row.usage.Quality.Get(r))
			v := big.NewInt(row.usage.Amount[r])
			switch {
			case r.Detail().Kind != usage.Peak:
				g.sums[r].Add(g.sums[r], v)
			case v.Cmp(g.sums[r]) > 0:
				g.sums[r] = v
			}
		})
	}
	var list []*groupTotal
	for _, g := range found {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *groupTotal) int {
		return cmp.Or(b.sums[usage.CPU].Cmp(a.sums[usage.CPU]), slices.Compare(a.keys, b.keys))
	})
	return list
}

// inScope reports whether a scope includes a node: as a whole, or by a workload of a
// project.
func (b *ledgerBook) inScope(n *bookNode, s query.Scope, workloads []*bookWorkload) bool {
	if s.All {
		return true
	}
	if len(s.Clusters) > 0 && !slices.Contains(s.Clusters, n.cluster) {
		return false
	}
	if len(s.Projects) == 0 {
		return len(s.Clusters) > 0
	}
	return slices.ContainsFunc(workloads, func(w *bookWorkload) bool {
		return w.node == n && slices.Contains(s.Projects, w.told.Project)
	})
}
