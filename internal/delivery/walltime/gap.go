package walltime

import (
	"math"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// MoveGaps moves the gaps of a batch along with its windows: each edge by what was
// added to the window that is nearest to it. The start of a Rebooted gap is of
// another boot's clock, so it moves only with a window that ends there. No gap
// ends later than Tolerance after now, or before it began.
func MoveGaps(now time.Time, ws []usage.Window, by []time.Duration, gaps []usage.Gap) []usage.Gap {
	moved := make([]usage.Gap, len(gaps))
	for i, g := range gaps {
		reach := int64(math.MaxInt64)
		if g.Reason == usage.Rebooted {
			reach = int64(Tolerance)
		}
		g.From = moveEdge(g.From, ws, by, reach)
		g.To = moveEdge(g.To, ws, by, math.MaxInt64)
		moved[i] = ClampGap(now, g)
	}
	return moved
}

// ClampGap cuts a gap to the time that anything can be booked at: 1970 to Tolerance
// after now.
func ClampGap(now time.Time, g usage.Gap) usage.Gap {
	first, last := time.Unix(0, 0).UTC(), now.Add(Tolerance).UTC()
	clamp := func(t time.Time) time.Time {
		switch {
		case t.Before(first):
			return first
		case t.After(last):
			return last
		}
		return t.UTC()
	}
	g.To = clamp(g.To)
	g.From = clamp(g.From)
	if g.From.After(g.To) {
		g.From = g.To
	}
	return g
}

// moveEdge moves t by the duration that was added to the nearest window, if that
// window is at most reach away.
func moveEdge(t time.Time, ws []usage.Window, by []time.Duration, reach int64) time.Time {
	if y := t.Year(); y < 1970 || y > 2261 {
		return t // out of what nanoseconds can hold; ClampGap cuts it
	}
	at, nearest, add := t.UnixNano(), int64(math.MaxInt64), time.Duration(0)
	for i := range ws {
		w := &ws[i]
		start, end := w.Start+w.Offset, w.End+w.Offset
		if d := max(start-at, at-end, 0); d < nearest && d <= reach {
			nearest, add = d, by[i]
		}
	}
	return t.Add(add)
}
