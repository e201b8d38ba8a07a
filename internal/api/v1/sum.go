package v1

import (
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Sum returns what all groups of an answer used together, Other included.
func Sum(a *query.Answer) (sum query.Total) {
	for i := range a.Groups {
		sum.Add(&a.Groups[i].Usage)
	}
	sum.Add(&a.Other)
	return sum
}

// LimitGroups keeps the first n groups of an answer and adds up the others in its Other.
// The groups idle and system do not count: those of nodes on which a kept group ran stay,
// and those of all other nodes become one group each, whose node has no name. Of the
// groups of guests, which are in no sum, the first n stay.
func LimitGroups(a *query.Answer, n int) {
	most, own := n, slices.ContainsFunc(a.By, IsMachineDimension)
	known := map[string]bool{} // the machine keys of the groups that are kept
	before := len(a.Groups) + a.OtherGroups
	a.Groups = slices.DeleteFunc(a.Groups, func(g query.Group) bool {
		if ResidualKind(a.By, g.Keys) != "" {
			return false
		}
		if n--; n >= 0 {
			known[machineKey(a.By, g.Keys)] = true
			return false
		}
		a.Other.Add(&g.Usage)
		a.OtherGroups++
		return true
	})
	if own && before > most {
		var away []query.Group
		a.Groups = slices.DeleteFunc(a.Groups, func(g query.Group) bool {
			if ResidualKind(a.By, g.Keys) == "" || known[machineKey(a.By, g.Keys)] {
				return false
			}
			away = append(away, g)
			return true
		})
		a.Groups = append(a.Groups, mergeMachines(a.By, away)...)
	}
	if over := len(a.NestedGroups) - most; over > 0 {
		a.NestedGroups, a.NestedOmitted = a.NestedGroups[:most], over
	}
}

// machineKey joins the keys that are nodes and clusters.
func machineKey(by []query.Dimension, keys []string) string {
	var names []string
	for i, d := range by {
		if IsMachineDimension(d) {
			names = append(names, keys[i])
		}
	}
	return strings.Join(names, "\x00")
}

// mergeMachines merges groups that differ in nodes and clusters only.
func mergeMachines(by []query.Dimension, groups []query.Group) (out []query.Group) {
	at := map[string]int{}
	for i := range groups {
		g := groups[i]
		g.Keys = slices.Clone(g.Keys)
		for k, d := range by {
			if IsMachineDimension(d) {
				g.Keys[k] = ""
			}
		}
		name := strings.Join(g.Keys, "\x00")
		n, ok := at[name]
		if !ok {
			at[name] = len(out)
			out = append(out, g)
			continue
		}
		o := &out[n]
		o.Nodes += g.Nodes // each is of other machines
		if g.First.Before(o.First) {
			o.First = g.First
		}
		if g.Last.After(o.Last) {
			o.Last = g.Last
		}
		o.Usage.Add(&g.Usage)
	}
	return out
}

// SetAveragedOver sets the length of time over which averages are computed, if the ledger did
// not set it: the range from the first node's enrollment to the end of the latest booked
// window. Over the full range, a server that is a day old would show averages of a week that
// are too low.
func SetAveragedOver(a *query.Answer, nodes []query.Node) {
	if a.AveragedOver > 0 {
		return
	}
	var first, last time.Time
	for i := range nodes {
		if t := nodes[i].Enrolled; !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
		if t := nodes[i].Through; t.After(last) {
			last = t
		}
	}
	// Groups begin and end with whole minutes, which contain the nodes' first and last
	// seconds. Use outside this span was measured before a node enrolled, or by a node that
	// was removed.
	early, late := first.Truncate(time.Minute), last.Add(time.Minute)
	for i := range a.Groups {
		g := &a.Groups[i]
		if !g.First.IsZero() && (first.IsZero() || g.First.Before(early)) {
			first, early = g.First, g.First
		}
		if g.Last.After(late) {
			last, late = g.Last, g.Last
		}
	}
	from, to := a.From, a.To
	if first.After(from) {
		from = first
	}
	if last.Before(to) {
		to = last
	}
	if a.AveragedOver = to.Sub(from); first.IsZero() || a.AveragedOver <= 0 {
		a.AveragedOver = a.To.Sub(a.From)
	}
}

// amount returns the amount of the figure and its quality, which may be absent.
func (f *figure) amount(t *query.Total, over time.Duration) (unit.Sum, usage.Quality) {
	switch f.kind {
	case energySum:
		return t.Energy()
	case idleEnergy:
		return t.Idle, t.IdleQuality
	case idleEnergyError:
		return t.IdleError, t.IdleQuality
	case powerAverage:
		sum, q := t.AllEnergy()
		if over <= 0 {
			return unit.Sum{}, usage.Absent
		}
		return perSecond(sum.Float(unit.Count), over), q
	case unusedAmount, unusedAverage:
		u := t.Unused[f.reservable()]
		if u.Quality == usage.Absent || f.kind == unusedAverage && over <= 0 {
			return unit.Sum{}, usage.Absent
		}
		if f.kind == unusedAverage {
			return perSecond(u.Sum.Float(unit.Count), over), u.Quality
		}
		return u.Sum, u.Quality
	}
	if !t.Present.Has(f.res) || f.kind == levelAverage && over <= 0 {
		return unit.Sum{}, usage.Absent
	}
	q := t.Quality.Get(f.res)
	if f.kind == unclassifiedAmount {
		return f.unclassified(t)
	}
	if f.kind == levelAverage {
		return perSecond(t.Sum[f.res].Float(unit.Count), over), q
	}
	return t.Sum[f.res], q
}

// unclassified returns what of a total of network traffic, which t has, has no class. A class that t lacks has no traffic.
func (f *figure) unclassified(t *query.Total) (unit.Sum, usage.Quality) {
	var known unit.Sum
	q := t.Quality.Get(f.res)
	for r := range (f.classes() & t.Present).All() {
		known, q = known.Plus(t.Sum[r]), max(q, t.Quality.Get(r))
	}
	return t.Sum[f.res].Less(known), q
}

// perSecond divides an amount by a length of time, in seconds.
func perSecond(amount float64, over time.Duration) unit.Sum {
	return unit.Sum{}.Add(int64(min(math.Round(amount/over.Seconds()), 1<<62)))
}

// ResidualKind returns "idle" or "system" for a group that no job caused, and "" for all
// others.
func ResidualKind(by []query.Dimension, keys []string) string {
	for i, d := range by {
		if !IsMachineDimension(d) && (keys[i] == "idle" || keys[i] == "system") {
			return keys[i]
		}
	}
	return ""
}

// JobsBy returns the dimensions of the answer that [KeepJobs] takes.
func JobsBy() []query.Dimension {
	return []query.Dimension{query.ByCluster, query.ByJob, query.ByNamespace, query.ByUser, query.ByProject}
}

// KeepJobs removes from an answer by [JobsBy] what is of no job, and sorts it by cluster
// and name.
func KeepJobs(a *query.Answer) {
	a.Groups = slices.DeleteFunc(a.Groups, func(g query.Group) bool {
		// The groups idle and system have that name in all dimensions.
		return g.Keys[1] == "" || g.Keys[2] == g.Keys[1] && ResidualKind(a.By[1:], g.Keys[1:]) != ""
	})
	slices.SortFunc(a.Groups, func(x, y query.Group) int { return strings.Compare(JobKey(&x), JobKey(&y)) })
}

// JobKey is the key of a job in the order of jobs.
func JobKey(g *query.Group) string { return strings.Join(g.Keys, "\x00") }
