package tally

import (
	"math"
	"time"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/unit"
)

// Sum is what all groups of an answer used together, the rest included.
func Sum(a *query.Answer) (sum query.Total) {
	for i := range a.Groups {
		sum.Add(&a.Groups[i].Usage)
	}
	sum.Add(&a.Rest)
	return sum
}

// Limit keeps the first n groups of an answer and puts the others into its rest.
// What no job caused stays, and is not counted: the rest shall be of what others
// used.
func Limit(a *query.Answer, n int) {
	var kept []query.Group
	for i := range a.Groups {
		switch g := &a.Groups[i]; {
		case noJob(a.By, g.Keys) != "":
			kept = append(kept, *g)
		case n > 0:
			kept = append(kept, *g)
			n--
		default:
			a.Rest.Add(&g.Usage)
			a.RestGroups++
		}
	}
	a.Groups = kept
}

// Narrow sets the length over which the answer's averages are taken, where the
// ledger has not said for how long there were readings: its range without the
// time before there was any node and the time that no node is booked through, so
// that a server of yesterday does not show half of what was used today as the
// average of a week.
func Narrow(a *query.Answer, nodes []query.Node) {
	if a.Over > 0 {
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
	if a.Over = to.Sub(from); first.IsZero() || a.Over <= 0 {
		a.Over = a.To.Sub(a.From)
	}
}

// get returns the figure's amount, and its quality, which may be absent.
func (f *figure) get(t *query.Total, over time.Duration) (unit.Sum, meter.Quality) {
	switch f.form {
	case energies:
		return t.Energy()
	case idling:
		return t.Idle, t.IdleQuality
	case idlingError:
		return t.IdleError, t.IdleQuality
	case watts:
		sum, q := t.AllEnergy()
		if over <= 0 {
			return unit.Sum{}, meter.Absent
		}
		return level(sum.Float(unit.Count), over), q
	}
	if !t.Present.Has(f.res) || f.form == average && over <= 0 {
		return unit.Sum{}, meter.Absent
	}
	q := t.Quality.Get(f.res)
	if f.form == average {
		return level(t.Sum[f.res].Float(unit.Count), over), q
	}
	return t.Sum[f.res], q
}

// level is an amount for each second of a length of time.
func level(amount float64, over time.Duration) unit.Sum {
	return unit.Sum{}.Add(int64(min(math.Round(amount/over.Seconds()), 1<<62)))
}
