package tsdb

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// A gap of a series runs from one sample to the next, with minute edges in between. What was
// used in it is what the ledger has of its minutes, less the increase that samples show in
// the first and the last one. Values are amounts, as the ledger has them.
type gap struct {
	res                  usage.Resource
	hasStart, hasEnd     bool  // there is a value before, and after
	cut                  bool  // there are samples before, in first
	from, to             int64 // of the samples before and after, ms since 1970; without one the start of the range, and never
	startValue, endValue int64
	first, last          int64 // minutes of from and to
	shownHead, shownTail int64 // increase that samples show in first up to from, and in last after to

	head, tail int64 // used in first and last, where there is a start and an end
	sum        int64 // used, in all
	begin, end int64 // minutes of the first and the last use; 0 is none

	base       int64 // value where it begins
	resetAfter int64 // how much of sum the life before uses, where another one follows it; else never
	used       int64 // used so far
}

// contains reports whether a minute is in the gap.
func (g *gap) contains(m int64) bool { return m >= g.first && m <= g.last }

// addUse adds what is used in a minute.
func (g *gap) addUse(m, v int64) {
	if v == 0 || !g.contains(m) {
		return
	}
	switch {
	case m == g.first && g.cut:
		g.head += v
	case m == g.last && g.hasEnd:
		g.tail += v
	default:
		g.sum += v
	}
	if g.begin == 0 {
		g.begin = m
	}
	g.begin, g.end = min(g.begin, m), max(g.end, m)
}

// closeGaps takes off what samples show, once all use is added. Where one gap ends and the
// next one begins in one minute, its use is divided so that either goes on without another
// life where it can. Gaps in which nothing was used are left out.
func closeGaps(list []gap) []gap {
	for i := range list {
		g := &list[i]
		g.head = max(g.head-g.shownHead, 0)
		if next := g.follower(list[i+1:]); next != nil {
			// Both have all of the minute, less the use that is shown between them.
			rest := max(g.tail-next.shownHead, 0)
			g.tail = min(max(g.endValue-g.startValue-g.sum-g.head, 0), rest)
			next.head, next.shownHead = rest-g.tail, 0
		} else {
			g.tail = max(g.tail-g.shownTail, 0)
		}
		g.sum += g.head + g.tail
	}
	return slices.DeleteFunc(list, func(g gap) bool { return g.sum == 0 })
}

// follower finds the gap of the same series that begins in the minute in which g ends.
func (g *gap) follower(list []gap) *gap {
	if !g.hasEnd {
		return nil
	}
	for i := range list {
		if o := &list[i]; o.res == g.res && o.cut && o.first == g.last {
			return o
		}
	}
	return nil
}

// plan decides how the value runs. othersReset reports that other series of the workload
// began anew.
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
		// External meters showed more to the ledger.
	case g.sum >= g.endValue:
		g.resetAfter = g.sum - g.endValue
	case g.endValue < g.startValue:
		g.resetAfter = 0
	}
}

// excess returns how much more was used than the value grows if the life goes on.
func (g *gap) excess() int64 { return g.startValue + g.sum - g.endValue }

func (g *gap) tolerance() int64 { return tolerance(max(g.startValue, g.endValue)) }

// mustReset reports whether another life must have begun in the gap.
func (g *gap) mustReset() bool {
	return g.hasStart && g.hasEnd && !isEnergy(g.res) && g.excess() > g.tolerance()
}

// value returns the value after what was used so far.
func (g *gap) value() int64 {
	v := g.base + g.used
	if g.used > g.resetAfter {
		v = g.used - g.resetAfter
	}
	if g.hasEnd && (g.used > g.resetAfter || g.resetAfter == never) {
		v = min(v, g.endValue) // it is never exceeded
	}
	return v
}

// advance takes the use of a minute; minutes come in order. If another life begins in it,
// reset is true: then the life before ends with a value at an instant.
func (g *gap) advance(m, v int64) (at, last int64, reset bool) {
	if !g.contains(m) {
		return 0, 0, false
	}
	// A minute may have several rows.
	switch {
	case m == g.first && g.cut:
		v = min(v, g.head)
		g.head -= v
	case m == g.last && g.hasEnd:
		v = min(v, g.tail)
		g.tail -= v
	}
	was := g.used
	g.used += v
	// No edge shows what the life before used in the last minute, if that is all.
	over := g.used > g.resetAfter || g.used == g.resetAfter && m == g.last
	if was > g.resetAfter || !over || v == 0 || g.base+g.resetAfter == 0 {
		return 0, 0, false
	}
	from, to := max(m*minute, g.from), min((m+1)*minute, g.to)
	at = from + (to-from)/2
	return at, g.base + g.resetAfter, at > from && at+1 < to
}

// hasSample reports whether the gap gets a sample at an edge: between its two samples,
// without a first one from the first use on, without a last one until the last use.
func (g *gap) hasSample(edge int64) bool {
	at := edge * minute
	switch {
	case g.hasStart && at <= g.from, g.hasEnd && at >= g.to:
		return false
	case !g.hasStart && edge < g.begin, !g.hasEnd && edge > g.end+1:
		return false
	}
	return true
}

// increase returns by how much a series grows from one value to the next, as PromQL's
// increase() has it: a lower value began at zero.
func increase(from, to int64) int64 {
	if to < from {
		return to
	}
	return to - from
}

// tolerance returns by how much the difference of a value to another one may be off:
// samples have 53 bits, and were added up from some tens of others.
func tolerance(v int64) int64 { return v>>46 + 1 }

// isEnergy reports whether a resource is energy, to which external meters may add.
func isEnergy(r usage.Resource) bool {
	return slices.Contains(usage.Energies[:], r) || r == usage.EnergyError
}
