package query

import (
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// An Uptime is for how long of a range a machine was up.
type Uptime struct {
	Node, Name, Cluster string // id, host name
	// From and To are the part of the range since the node is known. Up + Down + Unknown is its length.
	From, To time.Time
	// Up is how long its kernel ran, also without a meter. Down is from the end of the last window before each
	// restart to the boot after it: it may be too long by one window, and by a time before it without a meter.
	// Unknown is the time since its latest data if that is late, and the time for which the agent lost its state.
	Up, Down, Unknown time.Duration
	Downs             int // how often it was down, with those that began before From
	// Last is the latest of these; zero if there was none.
	Last Interval
}

// An Interval is a time from From to To.
type Interval struct{ From, To time.Time }

// SetUptime sets the times of u. The node is known since first, its data is complete through a time, and is late
// if isLate. gaps are those of the node that overlap the range, in any order.
func (u *Uptime) SetUptime(from, to, first, through time.Time, isLate bool, gaps []usage.Gap) {
	u.From, u.To = latest(from, first), to
	if !u.From.Before(u.To) {
		u.From, u.To = to, to
		return
	}
	seen := u.To // up to when its state is known
	if isLate {
		seen = latest(u.From, earliest(u.To, through))
	}
	in := func(reasons ...usage.Reason) (list []Interval) {
		for _, g := range gaps {
			if span := (Interval{latest(g.From, u.From), earliest(g.To, seen)}); slices.Contains(reasons, g.Reason) && span.From.Before(span.To) {
				list = append(list, span)
			}
		}
		return joined(list)
	}
	downs := in(usage.Rebooted)
	u.Down = lengthOf(downs)
	if u.Downs = len(downs); u.Downs > 0 {
		u.Last = downs[len(downs)-1]
	}
	either := lengthOf(in(usage.Rebooted, usage.StateLost))
	u.Unknown = u.To.Sub(seen) + either - u.Down
	u.Up = u.To.Sub(u.From) - u.Down - u.Unknown
}

// joined returns the union of intervals, in the order of time.
func joined(list []Interval) (out []Interval) {
	slices.SortFunc(list, func(a, b Interval) int { return a.From.Compare(b.From) })
	for _, s := range list {
		if n := len(out); n > 0 && !s.From.After(out[n-1].To) {
			out[n-1].To = latest(out[n-1].To, s.To)
		} else {
			out = append(out, s)
		}
	}
	return out
}

func lengthOf(list []Interval) (sum time.Duration) {
	for _, s := range list {
		sum += s.To.Sub(s.From)
	}
	return sum
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
