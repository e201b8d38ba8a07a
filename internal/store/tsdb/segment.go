package tsdb

import (
	"math"

	"mete.dev/mete/internal/model/usage"
)

const (
	minute = int64(60_000) // ms
	never  = int64(math.MaxInt64)
)

// A segment of a series runs between two edges of minutes, start before end, that have a
// sample, and of those between none has one: so all that is used in it is what the
// ledger has of its minutes. Samples that are within a minute are its points.
//
// Values are amounts, as the ledger has them. To grow is meant as who asks for an
// increase means it: a value that is less than the one before began at zero.
type segment struct {
	res                  usage.Resource
	start, end           int64 // minutes since 1970
	startValue, endValue int64 // values at start and end
	hasStart, hasEnd     bool  // there is a value at start, and at end
	startEarlier         bool  // that of start is of a sample before it, as it rested until then
	endEarlier           bool  // that of end is of a sample before it, as it rests since
	reset                bool  // a life begins or ends in it
	points               []point

	next    int             // of points
	minutes []segmentMinute // of the minutes that came
	sum     int64           // used in it
}

// A point is a sample: ms since 1970, and an amount.
type point struct{ at, v int64 }

// minute is the one that a point is of: what is at an edge is of the minute before.
func (p *point) minute() int64 { return (p.at - 1) / minute }

// A segmentMinute is a minute of a segment that has points, and what the ledger has of it and
// of the minutes from there to the next one.
type segmentMinute struct {
	minute     int64
	from, to   int // of points
	used       int64
	after      int64 // used after it
	begin, end int64 // minutes of the first and the last use in after; 0 is none
}

// addMinutes adds the minutes of points up to one. The first one is before all points.
func (s *segment) addMinutes(m int64) {
	if len(s.minutes) == 0 {
		s.minutes = append(s.minutes, segmentMinute{minute: -1})
	}
	for s.next < len(s.points) && s.points[s.next].minute() <= m {
		k := segmentMinute{minute: s.points[s.next].minute(), from: s.next}
		for s.next < len(s.points) && s.points[s.next].minute() == k.minute {
			s.next++
		}
		k.to = s.next
		s.minutes = append(s.minutes, k)
	}
}

// addUse takes what the ledger has of a minute, in their order. All points up to the
// end of the minute are there.
func (s *segment) addUse(m, v int64) {
	if v == 0 {
		return
	}
	s.addMinutes(m)
	s.sum += v
	k := &s.minutes[len(s.minutes)-1]
	if k.minute == m {
		k.used += v
		return
	}
	if k.after += v; k.begin == 0 {
		k.begin = m
	}
	k.end = m
}

// mismatched is called when all minutes came. It reports whether the series does not grow
// in each of them by what the ledger has, so that it has to be made to.
func (s *segment) mismatched() bool {
	if s.sum == 0 {
		return false
	}
	s.addMinutes(never)
	prev, alive := s.startValue, s.hasStart
	for i := range s.minutes {
		k := &s.minutes[i]
		grew := int64(0)
		for _, p := range s.points[k.from:k.to] {
			if alive {
				grew += increase(prev, p.v)
			}
			prev, alive = p.v, true
		}
		if d := grew - k.used; k.after > 0 || d > tolerance(prev) || -d > tolerance(prev) {
			return true
		}
	}
	return false
}

// increase is what a series grows by from one value to the next.
func increase(from, to int64) int64 {
	if to < from {
		return to
	}
	return to - from
}

// tolerance is by how much the difference of a value to another one may be off, as they
// have 53 bits and were added up from some tens of others.
func tolerance(v int64) int64 { return v>>46 + 1 }

// gaps are the parts of a segment in which there are edges without a sample: between
// its points. What points show of a minute is taken off what is used in it.
func (s *segment) gaps() (list []gap) {
	s.addMinutes(never)
	g := gap{res: s.res, hasStart: s.hasStart, startEarlier: s.startEarlier, from: s.start * minute, first: s.start, startValue: s.startValue}
	for i := range s.minutes {
		k := &s.minutes[i]
		if i > 0 {
			first, last := &s.points[k.from], &s.points[k.to-1]
			left, right := g.from < k.minute*minute || !g.hasStart && first.v > 0, last.at < s.end*minute
			shown := int64(0)
			for j := k.from + 1; j < k.to; j++ {
				shown += increase(s.points[j-1].v, s.points[j].v)
			}
			if !left {
				shown += increase(g.startValue, first.v)
			}
			rest := max(k.used-shown, 0)
			if left {
				g.hasEnd, g.shared, g.to, g.last, g.endValue, g.tail = true, right, first.at, k.minute, first.v, rest
				g.addUse(k.minute, rest)
				list = append(list, g)
				rest = 0
			}
			if !left && !right && rest > 0 {
				list = s.addHiddenReset(list, k, rest)
			}
			if !right {
				break
			}
			g = gap{res: s.res, hasStart: true, cut: true, from: last.at, first: k.minute, startValue: last.v, head: rest}
			g.addUse(k.minute, rest)
		}
		g.addUse(k.begin, k.after)
		g.end = max(g.end, k.end)
	}
	if n := len(s.points); n == 0 || s.points[n-1].at < s.end*minute {
		g.hasEnd, g.endEarlier, g.to, g.last, g.endValue = s.hasEnd, s.endEarlier, s.end*minute, s.end, s.endValue
		list = append(list, g)
	}
	splitShared(list)
	return list
}

// addHiddenReset adds a gap between two samples of a minute of which all edges are known and
// more was used than its samples show: a life began between them. It is there where
// the value went back, else where the new life may have come to more than the old one.
func (s *segment) addHiddenReset(list []gap, k *segmentMinute, rest int64) []gap {
	from, points := point{s.start * minute, s.startValue}, s.points[k.from:k.to]
	switch {
	case k.from > 0:
		from = s.points[k.from-1]
	case !s.hasStart:
		from, points = points[0], points[1:]
	}
	var found *gap
	for _, to := range points {
		back := to.v < from.v
		if to.at > from.at+2 && (back || from.v <= rest && found == nil) {
			sum := rest + increase(from.v, to.v)
			found = &gap{res: s.res, hasStart: true, hasEnd: true, cut: true, from: from.at, to: to.at, startValue: from.v, endValue: to.v,
				first: k.minute, last: k.minute, head: sum, sum: sum}
			if back {
				break
			}
		}
		from = to
	}
	if found != nil {
		list = append(list, *found)
	}
	return list
}

// splitShared divides what is used in minutes in which one gap ends and another one begins,
// and of which no edge is known, so that either goes on without another life where it
// can.
func splitShared(list []gap) {
	for i := range list {
		g := &list[i]
		if !g.shared {
			continue
		}
		next := &list[i+1]
		all := g.tail
		g.sum -= all
		x := g.endValue - g.startValue - g.sum
		if x < 0 || x > all {
			if x = all; next.hasEnd {
				x -= next.endValue - next.startValue - next.sum
			}
			x = max(x, g.endValue-g.sum) // at least what the new life shows
		}
		x = min(max(x, 0), all)
		g.sum += x
		g.tail, next.head = x, all-x
		next.addUse(next.first, all-x)
	}
}
