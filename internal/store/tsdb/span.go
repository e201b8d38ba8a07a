package tsdb

import (
	"context"
	"math"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	minute = int64(60_000) // ms
	never  = int64(math.MaxInt64)
)

// A span is a run of minute edges, from first to last, in minutes since 1970.
type span struct{ first, last int64 }

// contains reports whether an edge is in the span.
func (s span) contains(edge int64) bool { return edge >= s.first && edge <= s.last }

// unsampledSpans returns the runs of edges at which a node has no sample. They touch the
// range; the last one may reach beyond it, to the edge before samples begin again, at end
// at the latest. Windows are cut at minute edges and have rows for what is idle and what
// the system uses, so these have a sample at each edge that a window touches. A node of
// which only jobs are measured has no such rows: there all workloads count.
func (s *Store) unsampledSpans(ctx context.Context, n *node, within span, end int64) (list []span, err error) {
	sampled, whole := make([]bool, end-within.first+1), false
	all := make([]bool, len(sampled))
	name := labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.FamilyOf(usage.CPU).Name)
	err = s.eachCounter(ctx, n, within.first*minute, end*minute, func(_ workload.ID, short workload.ShortID, _ usage.Resource, it chunkenc.Iterator) {
		residual := short == n.residuals[0] || short == n.residuals[1]
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			if at%minute != 0 || value.IsStaleNaN(v) {
				continue
			}
			all[at/minute-within.first] = true
			if residual {
				sampled[at/minute-within.first], whole = true, true
			}
		}
	}, name)
	if err != nil {
		return nil, err
	}
	if !whole {
		sampled = all
	}
	open := false
	for e := within.first; e <= end; e++ {
		switch {
		case sampled[e-within.first]:
			open = false
		case open:
			list[len(list)-1].last = e
		case e <= within.last:
			open = true
			list = append(list, span{e, e})
		}
	}
	return list, nil
}

// maxSkew is how much earlier than others a series of a node may end where the power
// failed: chunks of some series reach the disk up to that much before the log does.
const maxSkew = 3 * blockSpan / 2

// maxPause is how far apart samples of a series are at most: a series that does not grow
// has its last value repeated.
const maxPause = 3 * repeatEvery

// A seriesScan finds the gaps of one series: where it has no sample at an edge at which
// its node has none, or none for longer than it pauses.
type seriesScan struct {
	res    usage.Resource
	within span
	spans  []span // of the node

	seen   bool // there was a sample
	alive  bool // the last one did not end a life
	at, v  int64
	minute int64 // of the last sample
	shown  int64 // increase that samples show in it, since the last gap
	gaps   []gap
}

// add takes the next sample, at is in ms since 1970. It returns false once the range is over.
func (c *seriesScan) add(at int64, x float64) bool {
	m := (at - 1) / minute
	if at > (c.within.last+1)*minute && m != c.minute {
		c.close(at)
		return false
	}
	if value.IsStaleNaN(x) {
		c.alive, c.at = false, at
		return true
	}
	v := amountOf(c.res, x)
	gap := c.close(at)
	if m != c.minute {
		c.minute, c.shown = m, 0
	}
	switch {
	case gap:
		g := &c.gaps[len(c.gaps)-1]
		g.hasEnd, g.to, g.endValue, g.last = true, at, v, m
		c.shown = 0
	case c.alive:
		c.show(increase(c.v, v))
	case c.seen:
		c.show(v)
	}
	c.seen, c.alive, c.at, c.v = true, true, at, v
	return true
}

// show counts an increase that samples show in the present minute.
func (c *seriesScan) show(v int64) {
	c.shown += v
	if n := len(c.gaps); n > 0 && c.gaps[n-1].last == c.minute {
		c.gaps[n-1].shownTail += v
	}
}

// close appends the gap between the last sample and the next one, or the end of the range, at
// an instant, if it is one.
func (c *seriesScan) close(at int64) bool {
	from := c.at
	if !c.seen {
		from = c.within.first*minute - 1
	}
	at = min(at, (c.within.last+2)*minute)
	first, last := from/minute+1, (at-1)/minute // edges between them
	if first > last || last < c.within.first || first > c.within.last || at-from <= maxPause.Milliseconds() && !c.touches(first, last) {
		return false
	}
	g := gap{res: c.res, hasStart: c.alive, cut: c.seen, from: from, to: never, startValue: c.v, first: from / minute, last: c.within.last}
	if c.minute == g.first {
		g.shownHead = c.shown
	}
	if !c.alive {
		g.startValue = 0
	}
	c.gaps = append(c.gaps, g)
	return true
}

// touches reports whether the node has no sample at one of some edges.
func (c *seriesScan) touches(first, last int64) bool {
	for _, sp := range c.spans {
		if sp.first <= last && sp.last >= first {
			return true
		}
	}
	return false
}

// scan finds the gaps of all series of a node's workloads.
func (s *Store) scan(ctx context.Context, h *nodeBackfill) error {
	return s.eachCounter(ctx, h.node, h.first*minute, h.last*minute, func(_ workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
		c := seriesScan{res: res, within: h.within, spans: h.spans}
		for it.Next() == chunkenc.ValFloat {
			if at, v := it.At(); !c.add(at, v) {
				break
			}
		}
		if !c.seen {
			return
		}
		if c.at <= (h.within.last+1)*minute {
			c.close(never)
		}
		t := h.workload(short)
		t.sampled |= usage.SetOf(res)
		t.gaps = append(t.gaps, c.gaps...)
	})
}
