package read

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// groupSet are the groups of an answer on their way. There may be as many as there are
// workloads, of which nobody will see most: each takes a third of the room of a
// query.Group, and many are made at a time.
type groupSet struct {
	want   usage.Set
	column [usage.Limit]int // where the sum of a resource stands, of those wanted
	all    map[string]*group
	free   []group
	sums   []unit.Sum
}

// A group is a query.Group on its way.
type group struct {
	keys                  []string
	first, last           int64 // minutes
	present               usage.Set
	uncertainty           int64
	covered, claimCovered time.Duration
	claimCPU              unit.Sum
	node                  int64          // the first one, from 1 on
	nodes                 map[int64]bool // all, where there are several
	sums                  []unit.Sum
}

// groupChunk is how many groups are made at a time.
const groupChunk = 256

// newGroups are none yet; they will have the sums of some resources.
func newGroups(want usage.Set) *groupSet {
	gs := &groupSet{want: want, all: map[string]*group{}}
	n := 0
	want.Each(func(r usage.Resource) { gs.column[r], n = n, n+1 })
	return gs
}

// groupName is what finds some keys among groups.
func groupName(keys []string) string { return strings.Join(keys, "\x00") }

// get is the group of some keys.
func (gs *groupSet) get(keys []string) *group {
	name := groupName(keys)
	if g := gs.all[name]; g != nil {
		return g
	}
	return gs.getNamed(name, slices.Clone(keys))
}

// getNamed is at for keys that stay as they are, and their name.
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

// add adds an amount of a resource that is wanted.
func (gs *groupSet) add(g *group, r usage.Resource, v unit.Sum) {
	s := &g.sums[gs.column[r]]
	if !isPeak[r] {
		*s = s.Plus(v)
	} else if v.Compare(*s) > 0 {
		*s = v
	}
}

// isPeak says of each resource whether the largest amount stays.
var isPeak = func() (is [usage.Limit]bool) {
	usage.All.Each(func(r usage.Resource) { is[r] = r.Detail().Kind == usage.Peak })
	return is
}()

// addNode notes a node.
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

// addClaim notes what of a row can claim idle energy, unless it was given its part.
func (g *group) addClaim(present, coveredMS int64, cpu unit.Sum) {
	if !usage.Set(present).Has(usage.EnergyIdle) {
		g.claimCPU = g.claimCPU.Plus(cpu)
		g.claimCovered += time.Duration(coveredMS) * time.Millisecond
	}
}

// extend widens the time of a group to the minutes [FirstMinute, last).
func (g *group) extend(first, last int64) { g.first, g.last = min(g.first, first), max(g.last, last) }

// addRow notes what is there, and how good, of rows of the group.
func (g *group) addRow(present, rough, coveredMS int64) {
	set := usage.Set(present)
	g.present |= set
	g.covered += time.Duration(coveredMS) * time.Millisecond
	if rough != 0 {
		// What a row says of what it does not have is nothing.
		set.Each(func(r usage.Resource) { g.uncertainty |= rough & (3 << (2 * r)) })
	}
}

// fillTotal writes what a group used.
func (gs *groupSet) fillTotal(g *group, to *query.Total) {
	*to = query.Total{Present: g.present & gs.want, Covered: g.covered, ClaimCPU: g.claimCPU, ClaimCovered: g.claimCovered}
	to.Quality = usage.QualitiesOfUncertainty(to.Present, g.uncertainty)
	i := 0
	gs.want.Each(func(r usage.Resource) { to.Sum[r], i = g.sums[i], i+1 })
}

// toGroup is a group as an answer has it.
func (gs *groupSet) toGroup(g *group) (out query.Group) {
	gs.fillTotal(g, &out.Usage)
	if out.Nodes = len(g.nodes); g.nodes == nil && g.node != 0 {
		out.Nodes = 1
	}
	out.Keys, out.First, out.Last = g.keys, time.Unix(g.first*60, 0).UTC(), time.Unix(g.last*60, 0).UTC()
	return out
}

// list are all groups, in their order.
func (gs *groupSet) sorted() []query.Group {
	return gs.sortGroups(slices.Collect(maps.Values(gs.all)))
}

func (gs *groupSet) sortGroups(some []*group) []query.Group {
	cpu := gs.column[usage.CPU]
	slices.SortFunc(some, func(a, b *group) int {
		return cmp.Or(b.sums[cpu].Compare(a.sums[cpu]), slices.Compare(a.keys, b.keys))
	})
	out := make([]query.Group, len(some))
	for i, g := range some {
		out[i] = gs.toGroup(g)
	}
	return out
}

// top is list of the groups that are to be seen; what the others used is added to
// the rest of the answer.
func (gs *groupSet) top(t *query.Top, a *query.Answer) []query.Group {
	type place struct {
		query.Rank
		*group
	}
	var kept []*group
	var first []place // of those so far, and some more
	var u query.Total
	drop := func() {
		a.Other.Add(&u)
		a.OtherGroups++
	}
	cut := func() {
		slices.SortFunc(first, func(a, b place) int { return a.Compare(&b.Rank) })
		for len(first) > t.Limit {
			gs.fillTotal(first[len(first)-1].group, &u)
			drop()
			first = first[:len(first)-1]
		}
	}
	full := false
	for _, g := range gs.all {
		if t.AlwaysKept(g.keys) {
			kept = append(kept, g)
			continue
		}
		gs.fillTotal(g, &u)
		p := place{t.Rank(g.keys, &u, a.AveragedOver), g}
		if full && p.Compare(&first[t.Limit-1].Rank) > 0 {
			drop()
			continue
		}
		if first = append(first, p); len(first) >= 2*t.Limit+groupChunk {
			cut()
			full = true
		}
	}
	cut()
	for i := range first {
		kept = append(kept, first[i].group)
	}
	return gs.sortGroups(kept)
}

// compareUse is the order of groups.
func compareUse(a, b *query.Group) int {
	return cmp.Or(b.Usage.Sum[usage.CPU].Compare(a.Usage.Sum[usage.CPU]), slices.Compare(a.Keys, b.Keys))
}
