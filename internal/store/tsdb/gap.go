package tsdb

import "mete.dev/mete/internal/model/usage"

// A gap is a part of a segment that is filled in: between two samples with edges
// between them, or until a series ends.
type gap struct {
	res                      usage.Resource
	hasStart, hasEnd         bool  // there is a value where it begins, and where it ends
	startEarlier, endEarlier bool  // of the segment, where the gap is at its beginning or its end
	from, to                 int64 // ms since 1970 of both values
	startValue, endValue     int64
	first, last              int64 // minutes that it touches

	cut    bool  // it begins within its first minute, ...
	head   int64 // ... of which this is left for it
	tail   int64 // the same of the last one, where it ends in it
	shared bool  // together with the head of the next gap

	sum        int64 // used in it
	begin, end int64 // minutes of the first and the last use; 0 is none

	base       int64 // value where it begins
	resetAfter int64 // how much of sum the old life uses, where another one follows it; else never
	used       int64 // used so far
}

// addUse adds what is used in a minute.
func (g *gap) addUse(m, v int64) {
	if v == 0 {
		return
	}
	if g.sum += v; g.begin == 0 {
		g.begin = m
	}
	g.begin, g.end = min(g.begin, m), max(g.end, m)
}

// plan finds out how the value runs. othersReset says that others of the workload began
// anew.
func (g *gap) plan(othersReset bool) {
	g.base, g.resetAfter = g.startValue, never
	more := g.excess()
	switch {
	case !g.hasEnd:
	case !g.hasStart && more <= 0:
		g.base = -more
	case more <= g.tolerance():
		// What was used and is not booked yet follows at the end.
	case g.hasStart && g.endValue >= g.startValue && isEnergy(g.res) && !othersReset:
		// Meters outside the machine showed more to the ledger.
	case g.sum >= g.endValue:
		g.resetAfter = g.sum - g.endValue
	case g.endValue < g.startValue:
		g.resetAfter = 0
	}
}

// excess is by how much more was used than the value grows where the life goes on.
func (g *gap) excess() int64 { return g.startValue + g.sum - g.endValue }

func (g *gap) tolerance() int64 { return tolerance(max(g.startValue, g.endValue)) }

// mustReset says whether it can only be that another life began in it.
func (g *gap) mustReset() bool {
	return g.hasStart && g.hasEnd && !isEnergy(g.res) && g.excess() > g.tolerance()
}

// value is what it shows after what was used so far.
func (g *gap) value() int64 {
	v := g.base + g.used
	if g.used > g.resetAfter {
		v = g.used - g.resetAfter
	}
	if g.hasEnd && (g.used > g.resetAfter || g.resetAfter == never) {
		v = min(v, g.endValue) // it is not passed
	}
	return v
}

// advance takes what is used in a minute, in their order, to show it. Where another life
// begins in it, reset is true: then the old one ends with a value at an instant.
func (g *gap) advance(m, v int64) (at, last int64, reset bool) {
	if m < g.first || m > g.last {
		return 0, 0, false
	}
	// Of a minute there may be several rows.
	switch {
	case m == g.first && g.cut:
		v = min(v, g.head)
		g.head -= v
	case m == g.last && g.hasEnd:
		v = min(v, g.tail)
		g.tail -= v
	case m == g.last:
		return 0, 0, false
	}
	was := g.used
	g.used += v
	// Of the last minute no edge shows what the old life used, where that is all.
	over := g.used > g.resetAfter || g.used == g.resetAfter && m == g.last
	if was > g.resetAfter || !over || v == 0 || g.base+g.resetAfter == 0 {
		return 0, 0, false
	}
	from, to := max(m*minute, g.from), min((m+1)*minute, g.to)
	at = from + (to-from)/2
	return at, g.base + g.resetAfter, at > from && at+1 < to
}

// hasSample reports whether it has a sample of its own at an edge.
func (g *gap) hasSample(edge int64) bool {
	at := edge * minute
	switch {
	case at < g.from, at > g.to, !g.hasStart && (g.begin == 0 || edge < g.begin):
		return false
	case at == g.from && g.hasStart:
		return g.startEarlier
	case at == g.to && g.hasEnd:
		return g.endEarlier
	}
	return g.hasEnd || edge <= g.end+1
}

// isEnergy says whether a resource is energy that others may add to.
func isEnergy(r usage.Resource) bool {
	for _, e := range usage.Energies {
		if r == e {
			return true
		}
	}
	return r == usage.EnergyError
}
