package tsdb

import (
	"math"

	"mete.dev/mete/internal/model/usage"
)

const (
	minute = int64(60_000) // ms
	never  = int64(math.MaxInt64)
)

// A stretch of a series runs between two edges of minutes, a before b, that have a
// sample, and of those between none has one: so all that is used in it is what the
// ledger has of its minutes. Samples that are within a minute are its points.
//
// Values are amounts, as the ledger has them. To grow is meant as who asks for an
// increase means it: a value that is less than the one before began at zero.
type stretch struct {
	res        usage.Resource
	a, b       int64 // minutes since 1970
	va, vb     int64 // values at a and b
	open, ends bool  // there is a value at a, and at b
	early      bool  // that of a is of a sample before a, as it rested until then
	late       bool  // that of b is of a sample before b, as it rests since
	turned     bool  // a life begins or ends in it
	points     []point

	next  int    // of points
	marks []mark // of the minutes that came
	sum   int64  // used in it
}

// A point is a sample: ms since 1970, and an amount.
type point struct{ at, v int64 }

// minute is the one that a point is of: what is at an edge is of the minute before.
func (p *point) minute() int64 { return (p.at - 1) / minute }

// A mark is a minute of a stretch that has points, and what the ledger has of it and
// of the minutes from there to the next one.
type mark struct {
	minute     int64
	from, to   int // of points
	used       int64
	after      int64 // used after it
	begin, end int64 // minutes of the first and the last use in after; 0 is none
}

// mark adds the minutes of points up to one. The first mark is before all points.
func (s *stretch) mark(m int64) {
	if len(s.marks) == 0 {
		s.marks = append(s.marks, mark{minute: -1})
	}
	for s.next < len(s.points) && s.points[s.next].minute() <= m {
		k := mark{minute: s.points[s.next].minute(), from: s.next}
		for s.next < len(s.points) && s.points[s.next].minute() == k.minute {
			s.next++
		}
		k.to = s.next
		s.marks = append(s.marks, k)
	}
}

// book takes what the ledger has of a minute, in their order. All points up to the
// end of the minute are there.
func (s *stretch) book(m, v int64) {
	if v == 0 {
		return
	}
	s.mark(m)
	s.sum += v
	k := &s.marks[len(s.marks)-1]
	if k.minute == m {
		k.used += v
		return
	}
	if k.after += v; k.begin == 0 {
		k.begin = m
	}
	k.end = m
}

// amiss is called when all minutes came. It reports whether the series does not grow
// in each of them by what the ledger has, so that it has to be made to.
func (s *stretch) amiss() bool {
	if s.sum == 0 {
		return false
	}
	s.mark(never)
	prev, alive := s.va, s.open
	for i := range s.marks {
		k := &s.marks[i]
		grew := int64(0)
		for _, p := range s.points[k.from:k.to] {
			if alive {
				grew += grown(prev, p.v)
			}
			prev, alive = p.v, true
		}
		if d := grew - k.used; k.after > 0 || d > inexact(prev) || -d > inexact(prev) {
			return true
		}
	}
	return false
}

// grown is what a series grows by from one value to the next.
func grown(from, to int64) int64 {
	if to < from {
		return to
	}
	return to - from
}

// inexact is by how much the difference of a value to another one may be off, as they
// have 53 bits and were added up from some tens of others.
func inexact(v int64) int64 { return v>>46 + 1 }

// gaps are the parts of a stretch in which there are edges without a sample: between
// its points. What points show of a minute is taken off what is used in it.
func (s *stretch) gaps() (list []gap) {
	s.mark(never)
	g := gap{res: s.res, open: s.open, early: s.early, from: s.a * minute, first: s.a, va: s.va}
	for i := range s.marks {
		k := &s.marks[i]
		if i > 0 {
			first, last := &s.points[k.from], &s.points[k.to-1]
			left, right := g.from < k.minute*minute || !g.open && first.v > 0, last.at < s.b*minute
			shown := int64(0)
			for j := k.from + 1; j < k.to; j++ {
				shown += grown(s.points[j-1].v, s.points[j].v)
			}
			if !left {
				shown += grown(g.va, first.v)
			}
			rest := max(k.used-shown, 0)
			if left {
				g.ends, g.shared, g.to, g.last, g.vb, g.tail = true, right, first.at, k.minute, first.v, rest
				g.use(k.minute, rest)
				list = append(list, g)
				rest = 0
			}
			if !left && !right && rest > 0 {
				list = s.hidden(list, k, rest)
			}
			if !right {
				break
			}
			g = gap{res: s.res, open: true, cut: true, from: last.at, first: k.minute, va: last.v, head: rest}
			g.use(k.minute, rest)
		}
		g.use(k.begin, k.after)
		g.end = max(g.end, k.end)
	}
	if n := len(s.points); n == 0 || s.points[n-1].at < s.b*minute {
		g.ends, g.late, g.to, g.last, g.vb = s.ends, s.late, s.b*minute, s.b, s.vb
		list = append(list, g)
	}
	share(list)
	return list
}

// hidden adds a gap between two samples of a minute of which all edges are known and
// more was used than its samples show: a life began between them. It is there where
// the value went back, else where the new life may have come to more than the old one.
func (s *stretch) hidden(list []gap, k *mark, rest int64) []gap {
	from, points := point{s.a * minute, s.va}, s.points[k.from:k.to]
	switch {
	case k.from > 0:
		from = s.points[k.from-1]
	case !s.open:
		from, points = points[0], points[1:]
	}
	var found *gap
	for _, to := range points {
		back := to.v < from.v
		if to.at > from.at+2 && (back || from.v <= rest && found == nil) {
			sum := rest + grown(from.v, to.v)
			found = &gap{res: s.res, open: true, ends: true, cut: true, from: from.at, to: to.at, va: from.v, vb: to.v,
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

// share divides what is used in minutes in which one gap ends and another one begins,
// and of which no edge is known, so that either goes on without another life where it
// can.
func share(list []gap) {
	for i := range list {
		g := &list[i]
		if !g.shared {
			continue
		}
		next := &list[i+1]
		all := g.tail
		g.sum -= all
		x := g.vb - g.va - g.sum
		if x < 0 || x > all {
			if x = all; next.ends {
				x -= next.vb - next.va - next.sum
			}
			x = max(x, g.vb-g.sum) // at least what the new life shows
		}
		x = min(max(x, 0), all)
		g.sum += x
		g.tail, next.head = x, all-x
		next.use(next.first, all-x)
	}
}
