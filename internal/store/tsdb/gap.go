package tsdb

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// A gap of a series is the time from one sample to the next, with minute edges in between.
// Its use is the ledger's use in its minutes, less the increase that samples show in the
// first and the last of them. Values are amounts in the ledger's units.
type gap struct {
	res                  usage.Resource
	hasStart, hasEnd     bool  // there is a value before; after
	cut                  bool  // there are samples before, in the minute first
	from, to             int64 // times of the samples before and after, ms since 1970; without them the start of the range and never
	startValue, endValue int64
	first, last          int64 // minutes of from and to
	shownHead, shownTail int64 // increase that samples show in first up to from, and in last after to

	head, tail int64 // use in first and last, if there is a start and an end
	sum        int64 // total use
	begin, end int64 // minutes of the first and the last use; 0 is none

	base       int64 // value at the start of the gap
	resetAfter int64 // use of the first life, if a second one follows; else never
	used       int64 // use so far
}

// contains reports whether a minute is in the gap.
func (g *gap) contains(m int64) bool { return m >= g.first && m <= g.last }

// addUse adds the use of a minute.
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

// closeGaps subtracts the use that samples show, after all use was added. If one gap ends and
// the next one starts in the same minute, it divides the use of the minute so that neither
// needs a counter reset if possible. It drops gaps without use.
func closeGaps(list []gap) []gap {
	for i := range list {
		g := &list[i]
		g.head = max(g.head-g.shownHead, 0)
		if next := g.follower(list[i+1:]); next != nil {
			// Both gaps have the whole use of the minute; subtract the use shown between them.
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

// plan decides how the value grows in the gap. othersReset reports that other series of the
// workload were reset.
func (g *gap) plan(othersReset bool) {
	g.base, g.resetAfter = g.startValue, never
	more := g.excess()
	switch {
	case !g.hasEnd:
	case more <= g.tolerance():
		// The ledger lacks use that is not booked yet; the sample after the gap shows it. Without a
		// sample before, it is the value at the start.
		if !g.hasStart {
			g.base = max(-more, 0)
		}
	case g.hasStart && g.endValue >= g.startValue && isEnergy(g.res) && !othersReset:
		// External meters added energy in the ledger.
	case g.sum >= g.endValue:
		g.resetAfter = g.sum - g.endValue
	case g.endValue < g.startValue:
		g.resetAfter = 0
	}
}

// excess returns by how much the use exceeds the growth of the value if there was no reset.
func (g *gap) excess() int64 { return g.startValue + g.sum - g.endValue }

func (g *gap) tolerance() int64 { return tolerance(max(g.startValue, g.endValue)) }

// mustReset reports whether another life must have started in the gap.
func (g *gap) mustReset() bool {
	return g.hasStart && g.hasEnd && !isEnergy(g.res) && g.excess() > g.tolerance()
}

// value returns the value after the use so far.
func (g *gap) value() int64 {
	v := g.base + g.used
	if g.used > g.resetAfter {
		v = g.used - g.resetAfter
	}
	if g.hasEnd && (g.used > g.resetAfter || g.resetAfter == never) {
		v = min(v, g.endValue) // the series must not fall afterward
	}
	return v
}

// advance adds the use of a minute; minutes come in order. If another life starts in the
// minute, reset is true, and the life before ends with the value last at the time at.
func (g *gap) advance(m, v int64) (at, last int64, reset bool) {
	if !g.contains(m) {
		return at, last, false
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
	// In the last minute no edge follows, so write the end of the first life here if its use
	// is complete.
	over := g.used > g.resetAfter || g.used == g.resetAfter && m == g.last
	if was > g.resetAfter || !over || v == 0 || g.base+g.resetAfter == 0 {
		return at, last, false
	}
	from, to := max(m*minute, g.from), min((m+1)*minute, g.to)
	at = from + (to-from)/2
	return at, g.base + g.resetAfter, at+1 < to
}

// hasSample reports whether the gap gets a sample at an edge: any edge between its samples;
// without a sample before, from the first use; without one after, until the last use.
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

// increase returns the growth of a series from one value to the next like PromQL's
// increase(): a lower value follows a reset to zero.
func increase(from, to int64) int64 {
	if to < from {
		return to
	}
	return to - from
}

// tolerance returns the error of a difference of values of about v: samples have 53 bits and
// may be sums of some tens of others.
func tolerance(v int64) int64 { return v>>46 + 1 }

// isEnergy reports whether a resource is energy, to which external meters may add.
func isEnergy(r usage.Resource) bool {
	return slices.Contains(usage.Energies[:], r) || r == usage.EnergyError
}
