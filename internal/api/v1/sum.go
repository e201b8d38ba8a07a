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

// Sum is what all groups of an answer used together, Other included.
func Sum(a *query.Answer) (sum query.Total) {
	for i := range a.Groups {
		sum.Add(&a.Groups[i].Usage)
	}
	sum.Add(&a.Other)
	return sum
}

// LimitGroups keeps the first n groups of an answer and adds the others up to its Other:
// that is of what jobs used. What no job caused is kept of the machines on which a
// kept group ran. Of all others it is one group for each of idle and system, whose
// machine has no name. Of the groups of guests, which are in no sum, the first n
// stay too.
func LimitGroups(a *query.Answer, n int) {
	most, own := n, slices.ContainsFunc(a.By, IsMachineDimension)
	known := map[string]bool{} // the machines of groups that are kept
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

// machineKey is the machines of some keys, as one text.
func machineKey(by []query.Dimension, keys []string) string {
	var names []string
	for i, d := range by {
		if IsMachineDimension(d) {
			names = append(names, keys[i])
		}
	}
	return strings.Join(names, "\x00")
}

// mergeMachines makes one group of those that are alike but for their machines.
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

// SetAveragedOver sets the length over which the answer's averages are taken, where the
// ledger has not said for how long there were readings: its range without the
// time before there was any node and the time that no node is booked through, so
// that a server of yesterday does not show half of what was used today as the
// average of a week.
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
	// Groups are told of in whole minutes, in which the nodes' first and last
	// seconds lie. What is outside of those was measured before a node enrolled,
	// or by one that is gone.
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

// amount returns the figure's amount, and its quality, which may be absent.
func (f *figure) amount(t *query.Total, over time.Duration) (unit.Sum, usage.Quality) {
	switch f.kind {
	case EnergySum:
		return t.Energy()
	case idleEnergy:
		return t.Idle, t.IdleQuality
	case idleEnergyError:
		return t.IdleError, t.IdleQuality
	case PowerAverage:
		sum, q := t.AllEnergy()
		if over <= 0 {
			return unit.Sum{}, usage.Absent
		}
		return perSecond(sum.Float(unit.Count), over), q
	}
	if !t.Present.Has(f.res) || f.kind == LevelAverage && over <= 0 {
		return unit.Sum{}, usage.Absent
	}
	q := t.Quality.Get(f.res)
	if f.kind == LevelAverage {
		return perSecond(t.Sum[f.res].Float(unit.Count), over), q
	}
	return t.Sum[f.res], q
}

// perSecond is an amount for each second of a length of time.
func perSecond(amount float64, over time.Duration) unit.Sum {
	return unit.Sum{}.Add(int64(min(math.Round(amount/over.Seconds()), 1<<62)))
}
