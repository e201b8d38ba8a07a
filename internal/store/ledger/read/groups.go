package read

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A groupSet holds the groups of an answer while they are summed. There may be as many as there are
// workloads, and most are not returned: a group takes a third of the memory of a query.Group, and
// groups are allocated in chunks.
type groupSet struct {
	want   usage.Set
	column [usage.Limit]int // index of a wanted resource in sums
	all    map[string]*group
	free   []group
	sums   []unit.Sum
	// volumes are the pseudo-nodes of volumes, which groups do not count as nodes.
	volumes map[int64]bool
}

// A group is a query.Group while it is summed.
type group struct {
	keys        []string
	first, last int64 // minutes
	present     usage.Set
	uncertainty usage.Uncertainty
	covered     int64          // ms
	node        int64          // the first node id; 0 is none
	nodes       map[int64]bool // all node ids, if there are several
	sums        []unit.Sum
	unused      *unused // nil if nothing is, or it was not requested
}

// groupChunk is how many groups are allocated at a time.
const groupChunk = 256

// newGroups returns an empty set for the sums of some resources.
func newGroups(want usage.Set) *groupSet {
	gs := &groupSet{want: want, all: map[string]*group{}}
	n := 0
	want.Each(func(r usage.Resource) { gs.column[r], n = n, n+1 })
	return gs
}

// groupName joins the values of dimensions into a map key.
func groupName(keys []string) string { return strings.Join(keys, "\x00") }

// get returns the group of some keys, creating it if needed.
func (gs *groupSet) get(keys []string) *group {
	name := groupName(keys)
	if g := gs.all[name]; g != nil {
		return g
	}
	return gs.getNamed(name, slices.Clone(keys))
}

// getNamed is get for keys that the caller does not change, and their name.
func (gs *groupSet) getNamed(name string, keys []string) *group {
	g := gs.all[name]
	if g == nil {
		width := gs.want.Len()
		if len(gs.free) == 0 {
			gs.free, gs.sums = make([]group, groupChunk), make([]unit.Sum, groupChunk*width)
		}
		g = &gs.free[0]
		g.keys, g.first, g.sums = keys, math.MaxInt64, gs.sums[:width]
		gs.free, gs.sums = gs.free[1:], gs.sums[width:]
		gs.all[name] = g
	}
	return g
}

// add adds an amount of a wanted resource.
func (gs *groupSet) add(g *group, r usage.Resource, v unit.Sum) {
	s := &g.sums[gs.column[r]]
	if isPeak[r] {
		*s = s.Max(v)
	} else {
		*s = s.Plus(v)
	}
}

// isPeak holds the resources of which the largest amount counts.
var isPeak = func() (is [usage.Limit]bool) {
	usage.All.Each(func(r usage.Resource) { is[r] = r.Detail().Kind == usage.Peak })
	return is
}()

// addNode records a node of the group.
func (g *group) addNode(node int64) {
	switch {
	case g.node == 0 || g.nodes == nil && g.node == node:
		g.node = node
	case g.nodes == nil:
		g.nodes = map[int64]bool{g.node: true, node: true}
	default:
		g.nodes[node] = true
	}
}

// extend extends the group's time to the minutes [first, last).
func (g *group) extend(first, last int64) { g.first, g.last = min(g.first, first), max(g.last, last) }

// addRow adds presence, quality and covered time of rows.
func (g *group) addRow(present int64, rough usage.Uncertainty, coveredMS int64) {
	g.present |= usage.Set(present)
	g.covered += coveredMS
	g.uncertainty = g.uncertainty.Or(rough.Only(usage.Set(present)))
}

// fillTotal sets to to what a group used.
func (gs *groupSet) fillTotal(g *group, to *query.Total) {
	*to = query.Total{Present: g.present & gs.want, Covered: nanos(g.covered)}
	to.Quality = g.uncertainty.Qualities(to.Present)
	i := 0
	gs.want.Each(func(r usage.Resource) { to.Sum[r], i = g.sums[i], i+1 })
	if g.unused != nil {
		to.Unused = *g.unused
	}
}

// present returns the resources that some group has.
func (gs *groupSet) present() (set usage.Set) {
	for _, g := range gs.all {
		set |= g.present
	}
	return set
}

// nanos converts ms to ns: those of many workloads over years do not fit 64 bits.
func nanos(ms int64) unit.Sum {
	return unit.SumOf(bits.Mul64(uint64(max(0, ms)), uint64(time.Millisecond)))
}

// toGroup converts a group to the type of answers.
func (gs *groupSet) toGroup(g *group) (out query.Group) {
	gs.fillTotal(g, &out.Usage)
	if g.nodes == nil && g.node != 0 && !gs.volumes[g.node] {
		out.Nodes = 1
	}
	for node := range g.nodes {
		if !gs.volumes[node] {
			out.Nodes++
		}
	}
	out.Keys, out.First, out.Last = g.keys, time.Unix(g.first*60, 0).UTC(), time.Unix(g.last*60, 0).UTC()
	return out
}

// sorted returns all groups in order, at most limit if that is not 0, and the worst qualities of the others.
func (gs *groupSet) sorted(limit int) (out []query.Group, others usage.Qualities) {
	return gs.sortGroups(slices.Collect(maps.Values(gs.all)), limit)
}

// sortGroups is sorted for some groups. It converts only those that it returns.
func (gs *groupSet) sortGroups(some []*group, limit int) (out []query.Group, others usage.Qualities) {
	cpu := gs.column[usage.CPU]
	slices.SortFunc(some, func(a, b *group) int {
		return cmp.Or(b.sums[cpu].Compare(a.sums[cpu]), slices.Compare(a.keys, b.keys))
	})
	if limit > 0 && limit < len(some) {
		for _, g := range some[limit:] {
			others = others.Worst(g.uncertainty.Qualities(g.present & gs.want))
		}
		some = some[:limit]
	}
	out = make([]query.Group, len(some))
	for i, g := range some {
		out[i] = gs.toGroup(g)
	}
	return out, others
}

// top is sorted for the groups selected by t, and adds those that t leaves out to a.Other.
func (gs *groupSet) top(t *query.Top, a *query.Answer, limit int) ([]query.Group, usage.Qualities) {
	type place struct {
		query.Rank
		*group
	}
	var kept []*group
	var first []*place // the best so far, in order
	var u query.Total
	for _, g := range gs.all {
		if t.AlwaysKept(g.keys) {
			kept = append(kept, g)
			continue
		}
		gs.fillTotal(g, &u)
		if t.Limit > 0 {
			p := &place{t.Rank(g.keys, &u, a.AveragedOver), g}
			at, _ := slices.BinarySearchFunc(first, p, func(a, b *place) int { return a.Compare(&b.Rank) })
			if first = slices.Insert(first, at, p); len(first) <= t.Limit {
				continue
			}
			gs.fillTotal(first[t.Limit].group, &u)
			first = first[:t.Limit]
		}
		a.Other.Add(&u)
		a.OtherGroups++
	}
	for _, p := range first {
		kept = append(kept, p.group)
	}
	return gs.sortGroups(kept, limit)
}

// compareUse orders groups by CPU time, then keys.
func compareUse(a, b *query.Group) int {
	return cmp.Or(b.Usage.Sum[usage.CPU].Compare(a.Usage.Sum[usage.CPU]), slices.Compare(a.Keys, b.Keys))
}
