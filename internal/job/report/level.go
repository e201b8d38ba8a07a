package report

import (
	"math"
	"time"
)

// A Gauge computes average and peak of samples of a level such as memory. The zero value is ready
// to use.
type Gauge struct {
	seen bool
	last int64
	at   int64
	span int64   // ns covered
	sum  float64 // level x ns
	peak int64
}

// Add adds level v at time ns of a monotonic clock. Levels between two samples are interpolated
// linearly.
func (g *Gauge) Add(ns, v int64) {
	if !g.seen {
		g.seen, g.at, g.last, g.peak = true, ns, v, v
		return
	}
	if ns > g.at {
		g.sum += (float64(g.last) + float64(v)) / 2 * float64(ns-g.at)
		g.span += ns - g.at
		g.at = ns
	}
	g.last, g.peak = v, max(g.peak, v)
}

// Hold extends the last level until ns. It closes a series: a job's level drops as it ends, so
// interpolation to what remains would be too low.
func (g *Gauge) Hold(ns int64) {
	if g.seen {
		g.Add(ns, g.last)
	}
}

// Integral returns the level over time, in its unit times seconds, and the time covered.
func (g *Gauge) Integral() (sum int64, covered time.Duration) {
	return int64(g.sum / float64(time.Second)), time.Duration(g.span)
}

// Average returns the mean level, and whether there was any sample.
func (g *Gauge) Average() (int64, bool) {
	if g.span == 0 {
		return g.last, g.seen
	}
	return int64(math.Round(g.sum / float64(g.span))), g.seen
}

// Peak returns the highest level, and whether there was any sample.
func (g *Gauge) Peak() (int64, bool) { return g.peak, g.seen }

// Seen reports whether there was any sample.
func (g *Gauge) Seen() bool { return g.seen }
