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

// unsampledSpans returns the runs of edges at which a node has no sample and that start
// within the range. The last one may reach beyond it, to the edge before the next sample, at
// most to end. Windows are cut at minute edges and have residual rows, so these have a sample
// at each edge that a window touches. A node with standalone jobs only has no residual rows;
// there the samples of all workloads count.
func (s *Store) unsampledSpans(ctx context.Context, n *node, within span, end int64) (list []span, err error) {
	sampled, all := map[int64]bool{}, map[int64]bool{}
	name := labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.FamilyOf(usage.CPU).Name)
	err = s.eachCounter(ctx, n, within.first*minute, end*minute, func(_ workload.ID, short workload.ShortID, _ usage.Resource, it chunkenc.Iterator) {
		residual := short == n.residuals[0] || short == n.residuals[1]
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			if at%minute != 0 || value.IsStaleNaN(v) {
				continue
			}
			all[at/minute] = true
			if residual {
				sampled[at/minute] = true
			}
		}
	}, name)
	if err != nil {
		return nil, err
	}
	if len(sampled) == 0 {
		sampled = all
	}
	open := false
	for e := within.first; e <= end; e++ {
		switch {
		case sampled[e]:
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

// maxSkew is the longest time by which a series of a node may end before others after a power
// failure: head chunks of some series reach the disk up to that much before the log does.
const maxSkew = 3 * blockSpan / 2

// maxPause is the longest time between two samples of a live series: repeatLast repeats the
// last value of a series that does not grow.
const maxPause = 3 * repeatEvery

// A seriesScan finds the gaps of one series: times without a sample that include an edge of
// the node's spans or are longer than maxPause.
type seriesScan struct {
	res    usage.Resource
	within span
	spans  []span // of the node

	seen   bool // there was a sample
	alive  bool // the last sample was not a stale marker
	at, v  int64
	minute int64 // of the last sample
	shown  int64 // increase that samples show in this minute since the last gap
	gaps   []gap
}

// add adds the next sample; at is in ms since 1970. It returns false after the range.
func (s *seriesScan) add(at int64, x float64) bool {
	m := (at - 1) / minute
	if at > (s.within.last+1)*minute && m != s.minute {
		return false
	}
	if value.IsStaleNaN(x) {
		s.alive, s.at = false, at
		return true
	}
	v := amountOf(s.res, x)
	closed := s.close(at)
	if m != s.minute {
		s.minute, s.shown = m, 0
	}
	switch {
	case closed:
		g := &s.gaps[len(s.gaps)-1]
		g.hasEnd, g.to, g.endValue, g.last = true, at, v, m
	case s.alive:
		s.show(increase(s.v, v))
	case s.seen:
		s.show(v)
	}
	s.seen, s.alive, s.at, s.v = true, true, at, v
	return true
}

// show counts an increase that samples show in the current minute.
func (s *seriesScan) show(v int64) {
	s.shown += v
	if n := len(s.gaps); n > 0 && s.gaps[n-1].last == s.minute {
		s.gaps[n-1].shownTail += v
	}
}

// close appends the gap between the last sample and at, the time of the next sample or the
// end of the range, and reports whether there is a gap.
func (s *seriesScan) close(at int64) bool {
	from := s.at
	if !s.seen {
		from = s.within.first*minute - 1
	}
	at = min(at, (s.within.last+2)*minute)
	first, last := from/minute+1, (at-1)/minute // edges between from and at
	if first > last || last < s.within.first || first > s.within.last || at-from <= maxPause.Milliseconds() && !s.touches(first, last) {
		return false
	}
	g := gap{res: s.res, hasStart: s.alive, cut: s.seen, from: from, to: never, startValue: s.v, first: from / minute, last: s.within.last}
	if s.minute == g.first {
		g.shownHead = s.shown
	}
	if !s.alive {
		g.startValue = 0
	}
	s.gaps = append(s.gaps, g)
	return true
}

// touches reports whether the node has no sample at an edge from first to last.
func (s *seriesScan) touches(first, last int64) bool {
	for _, sp := range s.spans {
		if sp.first <= last && sp.last >= first {
			return true
		}
	}
	return false
}

// scan finds the gaps of all series of a node's workloads.
func (s *Store) scan(ctx context.Context, nb *nodeBackfill) error {
	return s.eachCounter(ctx, nb.node, nb.first*minute, nb.last*minute, func(_ workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
		c := seriesScan{res: res, within: nb.within, spans: nb.spans}
		for it.Next() == chunkenc.ValFloat && c.add(it.At()) {
		}
		if !c.seen {
			return
		}
		c.close(never)
		wb := nb.workload(short)
		wb.sampled |= usage.SetOf(res)
		wb.gaps = append(wb.gaps, c.gaps...)
	})
}
