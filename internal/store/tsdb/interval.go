package tsdb

import "slices"

// An interval is a time of which all windows of a node came, in ms since 1970.
type interval struct{ from, to int64 }

// intervals are intervals in order. Windows between two of them are missing and may still
// come.
type intervals []interval

const (
	// maxJoin is the distance in ms up to which two windows count as adjacent, because clocks
	// are adjusted.
	maxJoin = 1000
	// maxIntervals limits the intervals; the oldest are dropped.
	maxIntervals = 64
)

// add adds a window.
func (s intervals) add(from, to int64) intervals {
	i := 0
	for i < len(s) && s[i].to+maxJoin < from {
		i++
	}
	j := i
	for j < len(s) && s[j].from-maxJoin <= to {
		from, to = min(from, s[j].from), max(to, s[j].to)
		j++
	}
	s = slices.Replace(s, i, j, interval{from, to})
	return s[max(len(s)-maxIntervals, 0):]
}

// latestStart returns the start of the latest interval, or 0.
func (s intervals) latestStart() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].from
}
