package tsdb

import (
	"context"
	"math"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// maxEvenWindow is the maximum length, in ms, of a window for which an evenQueryable leaves out the
// sample at a minute edge inside it. Agents close a window every ten seconds.
const maxEvenWindow = 15_000

// An evenQueryable makes the samples of counters evenly spaced for range selectors. The store has a
// sample at the end of each window, and an additional one at each minute edge inside a window, which
// range selectors do not get. rate() extrapolates to the ends of its range by the mean distance of
// samples, so with uneven distances the rate of a constant use would be up to a sixth too low.
// Selectors without a range get all samples: at a minute edge a counter equals the ledger.
type evenQueryable struct {
	storage.SampleAndChunkQueryable
}

func (q evenQueryable) Querier(from, to int64) (storage.Querier, error) {
	wide, err := q.SampleAndChunkQueryable.Querier(widen(from, to))
	if err != nil {
		return nil, err
	}
	return evenQuerier{wide, from, to}, nil
}

// widen adds maxEvenWindow to both ends of a range, without overflow.
func widen(from, to int64) (earlier, later int64) {
	return max(from, math.MinInt64+maxEvenWindow) - maxEvenWindow, min(to, math.MaxInt64-maxEvenWindow) + maxEvenWindow
}

// An evenQuerier reads more on both sides than it returns: the neighbors of the first and the last
// sample show whether these are inside a window.
type evenQuerier struct {
	storage.Querier
	from, to int64
}

func (q evenQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	h := storage.SelectHints{Start: q.from, End: q.to}
	if hints != nil {
		h = *hints
	}
	// Only range selectors have a Range.
	if h.Range <= 0 || !selectsCounter(ms) {
		return q.Querier.Select(ctx, sorted, &h, ms...)
	}
	from, to := h.Start, h.End
	h.Start, h.End = widen(from, to)
	return evenSeriesSet{q.Querier.Select(ctx, sorted, &h, ms...), from, to}
}

// selectsCounter reports whether the matchers name a counter of workloads.
func selectsCounter(ms []*labels.Matcher) bool {
	for _, m := range ms {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && strings.HasPrefix(m.Value, "mete_workload_") && strings.HasSuffix(m.Value, "_total") {
			return true
		}
	}
	return false
}

type evenSeriesSet struct {
	storage.SeriesSet
	from, to int64
}

func (s evenSeriesSet) At() storage.Series { return evenSeries{s.SeriesSet.At(), s.from, s.to} }

type evenSeries struct {
	storage.Series
	from, to int64
}

func (s evenSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*evenIterator)
	if !ok {
		it = &evenIterator{}
	}
	*it = evenIterator{Iterator: s.Series.Iterator(it.Iterator), from: s.from, to: s.to}
	return it
}

// An evenIterator returns the samples of the range [from, to], except those that are inside a window.
// It reads one sample ahead.
type evenIterator struct {
	chunkenc.Iterator
	from, to           int64
	before, now, ahead floatSample // before is the latest that was not left out
	started            bool
}

type floatSample struct {
	at, started int64 // ms; started is the start time of the counter, 0 if unknown
	v           float64
	ok          bool
}

// isInsideWindow reports whether s is at a minute edge inside a window: its neighbors before and after are
// then the ends of that window.
func (s floatSample) isInsideWindow(before, after floatSample) bool {
	return s.at%minute == 0 && before.ok && after.ok && after.at-before.at <= maxEvenWindow &&
		!value.IsStaleNaN(before.v) && !value.IsStaleNaN(s.v) && !value.IsStaleNaN(after.v)
}

func (it *evenIterator) fetch() (s floatSample) {
	if it.Iterator.Next() == chunkenc.ValFloat {
		s.at, s.v = it.Iterator.At()
		s.started, s.ok = it.Iterator.AtST(), true
	}
	return s
}

func (it *evenIterator) Next() chunkenc.ValueType {
	if !it.started {
		it.started, it.ahead = true, it.fetch()
	}
	for it.ahead.ok && it.ahead.at <= it.to {
		s := it.ahead
		it.ahead = it.fetch()
		if s.isInsideWindow(it.before, it.ahead) {
			continue
		}
		it.before = s
		if s.at >= it.from {
			it.now = s
			return chunkenc.ValFloat
		}
	}
	it.now = floatSample{}
	return chunkenc.ValNone
}

// A sampleTime is a time in ms. With int64 itself, go vet takes Seek for a wrong io.Seeker.
type sampleTime = int64

// Seek implements [chunkenc.Iterator].
func (it *evenIterator) Seek(t sampleTime) chunkenc.ValueType {
	for !it.now.ok || it.now.at < t {
		if it.Next() == chunkenc.ValNone {
			return chunkenc.ValNone
		}
	}
	return chunkenc.ValFloat
}

func (it *evenIterator) At() (int64, float64) { return it.now.at, it.now.v }

func (it *evenIterator) AtT() int64 { return it.now.at }

func (it *evenIterator) AtST() int64 { return it.now.started }
