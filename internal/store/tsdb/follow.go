package tsdb

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// A follower cuts one series of a workload into stretches, of which it keeps those
// that may not grow by what the ledger has: where an edge has no sample, or a life
// begins or ends, or the hole does. Between two edges that are next to each other
// nothing else is lost: what comes with a window is there wholly or not at all.
type follower struct {
	from int64   // minute in which the hole begins
	back int64   // and in which it ends
	now  stretch // since the latest edge that has a sample
	kept []stretch
	at   int64 // of the latest sample, ms since 1970; 0 is none
	gone bool  // a life ended with it
}

// ended stands in place of a value where a life ends.
const ended = int64(-1)

// follow begins at the edge before the hole, and before any sample.
func follow(r usage.Resource, from, back int64) follower {
	return follower{from: from, back: back, now: stretch{res: r, a: from, b: never}}
}

// sample takes the next one; v is ended where a life ends. What is before the first
// edge says what there is at that edge: until then nothing is missing.
func (f *follower) sample(at, v int64) {
	s := &f.now
	f.at, f.gone = at, v == ended
	switch {
	case at <= s.a*minute:
		s.open, s.va, s.early = v != ended, max(v, 0), at < s.a*minute
	case v == ended:
		s.turned = true
	default:
		f.point(point{at, v})
		if at%minute == 0 {
			f.close(at/minute, v)
		}
	}
}

// point notes a sample. Of those of a series that rests the first and the last are
// enough.
func (f *follower) point(p point) {
	s := &f.now
	n := len(s.points)
	if n > s.next+1 && s.points[n-1].v == p.v && s.points[n-2].v == p.v {
		s.points[n-1].at = p.at
		return
	}
	before := s.va
	if n > 0 {
		before = s.points[n-1].v
	}
	s.turned = s.turned || n == 0 && !s.open || p.v < before
	s.points = append(s.points, p)
}

// close ends the stretch at an edge, and begins the next one.
func (f *follower) close(edge, v int64) {
	s := &f.now
	points := s.points[:0]
	if s.b, s.vb, s.ends = edge, v, true; s.b > s.a+1 || s.turned || s.a == f.from || s.a == f.back {
		f.kept = append(f.kept, *s)
		points = nil
	}
	f.now = stretch{res: s.res, a: edge, va: v, open: true, b: never, points: points}
}

// end ends the last stretch, at an edge. A series that was seen since an instant, in
// ms since 1970, would have a sample at the edge if it had grown until then: since
// that instant nothing is missing.
func (f *follower) end(edge, since int64) {
	s := &f.now
	if s.a >= edge {
		return
	}
	if f.at > since && !f.gone {
		s.vb, s.ends, s.late = s.va, true, true
		if n := len(s.points); n > 0 {
			s.vb = s.points[n-1].v
		}
	}
	s.b = edge
	f.kept = append(f.kept, *s)
	f.now = stretch{res: s.res, a: edge, b: never}
}

// find returns the stretch in which a minute is; nil where there is none.
func (f *follower) find(m int64) *stretch {
	for i := range f.kept {
		if s := &f.kept[i]; m >= s.a && m < s.b {
			return s
		}
	}
	if m >= f.now.a && m < f.now.b {
		return &f.now
	}
	return nil
}

// settle forgets the stretches that are as they should be, of those of which all
// minutes came.
func (f *follower) settle(through int64) {
	f.kept = slices.DeleteFunc(f.kept, func(s stretch) bool { return s.b <= through && !s.amiss() })
}
