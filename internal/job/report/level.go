package report

import (
	"math"
	"time"
)

// A Gauge sums samples of something that goes up and down, such as memory, to
// its average and its highest value. Its zero value is ready.
type Gauge struct {
	seen bool
	last int64
	at   int64
	span int64   // ns covered
	sum  float64 // level x ns
	peak int64
}

// Add takes the level v at time ns of a monotonic clock: between two samples
// the level is taken to be on a straight line.
func (l *Gauge) Add(ns, v int64) {
	if !l.seen {
		l.seen, l.at, l.last, l.peak = true, ns, v, v
		return
	}
	if ns > l.at {
		l.sum += (float64(l.last) + float64(v)) / 2 * float64(ns-l.at)
		l.span += ns - l.at
		l.at = ns
	}
	l.last, l.peak = v, max(l.peak, v)
}

// Hold says that the level stayed at its last sample until ns. It closes a
// series: what a job holds falls off as it ends, so a straight line to what is
// left afterwards would lie below what was there.
func (l *Gauge) Hold(ns int64) {
	if l.seen {
		l.Add(ns, l.last)
	}
}

// Integral returns the level over time, in its unit times seconds, and for how
// long it is known.
func (l *Gauge) Integral() (sum int64, covered time.Duration) {
	return int64(l.sum / float64(time.Second)), time.Duration(l.span)
}

// Average returns the mean level, and whether there was any sample.
func (l *Gauge) Average() (int64, bool) {
	if l.span == 0 {
		return l.last, l.seen
	}
	return int64(math.Round(l.sum / float64(l.span))), l.seen
}

// Peak returns the highest level, and whether there was any sample.
func (l *Gauge) Peak() (int64, bool) { return l.peak, l.seen }

// Seen reports whether there was any sample.
func (l *Gauge) Seen() bool { return l.seen }
