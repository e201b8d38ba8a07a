package tsdb

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// A cursor cuts one series of a workload into segments, of which it keeps those
// that may not grow by what the ledger has: where an edge has no sample, or a life
// begins or ends, or the gap does. Between two edges that are next to each other
// nothing else is lost: what comes with a window is there wholly or not at all.
type cursor struct {
	from    int64   // minute in which the gap begins
	resumed int64   // and in which it ends
	current segment // since the latest edge that has a sample
	kept    []segment
	at      int64 // of the latest sample, ms since 1970; 0 is none
	ended   bool  // a life ended with it
}

// lifeEnd stands in place of a value where a life ends.
const lifeEnd = int64(-1)

// newCursor begins at the edge before the gap, and before any sample.
func newCursor(r usage.Resource, from, resumed int64) cursor {
	return cursor{from: from, resumed: resumed, current: segment{res: r, start: from, end: never}}
}

// addSample takes the next one; v is lifeEnd where a life ends. What is before the first
// edge says what there is at that edge: until then nothing is missing.
func (f *cursor) addSample(at, v int64) {
	s := &f.current
	f.at, f.ended = at, v == lifeEnd
	switch {
	case at <= s.start*minute:
		s.hasStart, s.startValue, s.startEarlier = v != lifeEnd, max(v, 0), at < s.start*minute
	case v == lifeEnd:
		s.reset = true
	default:
		f.addPoint(point{at, v})
		if at%minute == 0 {
			f.closeSegment(at/minute, v)
		}
	}
}

// addPoint notes a sample. Of those of a series that rests the first and the last are
// enough.
func (f *cursor) addPoint(p point) {
	s := &f.current
	n := len(s.points)
	if n > s.next+1 && s.points[n-1].v == p.v && s.points[n-2].v == p.v {
		s.points[n-1].at = p.at
		return
	}
	before := s.startValue
	if n > 0 {
		before = s.points[n-1].v
	}
	s.reset = s.reset || n == 0 && !s.hasStart || p.v < before
	s.points = append(s.points, p)
}

// closeSegment ends the segment at an edge, and begins the next one.
func (f *cursor) closeSegment(edge, v int64) {
	s := &f.current
	points := s.points[:0]
	if s.end, s.endValue, s.hasEnd = edge, v, true; s.end > s.start+1 || s.reset || s.start == f.from || s.start == f.resumed {
		f.kept = append(f.kept, *s)
		points = nil
	}
	f.current = segment{res: s.res, start: edge, startValue: v, hasStart: true, end: never, points: points}
}

// finish ends the last segment, at an edge. A series that was seen since an instant, in
// ms since 1970, would have a sample at the edge if it had grown until then: since
// that instant nothing is missing.
func (f *cursor) finish(edge, since int64) {
	s := &f.current
	if s.start >= edge {
		return
	}
	if f.at > since && !f.ended {
		s.endValue, s.hasEnd, s.endEarlier = s.startValue, true, true
		if n := len(s.points); n > 0 {
			s.endValue = s.points[n-1].v
		}
	}
	s.end = edge
	f.kept = append(f.kept, *s)
	f.current = segment{res: s.res, start: edge, end: never}
}

// find returns the segment in which a minute is; nil where there is none.
func (f *cursor) find(m int64) *segment {
	for i := range f.kept {
		if s := &f.kept[i]; m >= s.start && m < s.end {
			return s
		}
	}
	if m >= f.current.start && m < f.current.end {
		return &f.current
	}
	return nil
}

// dropMatched forgets the segments that are as they should be, of those of which all
// minutes came.
func (f *cursor) dropMatched(through int64) {
	f.kept = slices.DeleteFunc(f.kept, func(s segment) bool { return s.end <= through && !s.mismatched() })
}
