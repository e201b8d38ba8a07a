package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// countedSeriesSet counts each series against the limits of its request: all of them are in
// memory at once, and the limit of samples does not count them.
type countedSeriesSet struct {
	storage.SeriesSet
	ctx        context.Context
	admission  *admission
	span       time.Duration  // of the samples, to estimate the memory of their chunks
	seriesOnly bool           // the request reads series without their samples, or each one's latest sample
	at         storage.Series // the current one
	err        error
}

// countSeries wraps a set so that its series are counted; hints may be nil.
func countSeries(ctx context.Context, set storage.SeriesSet, hints *storage.SelectHints) storage.SeriesSet {
	a := admissionOf(ctx)
	if a == nil {
		return set
	}
	c := &countedSeriesSet{SeriesSet: set, ctx: ctx, admission: a}
	if hints != nil {
		// The first is Prometheus's mark of a request without samples.
		c.seriesOnly = hints.Func == "series" || hints.Func == federateFunc
		if !c.seriesOnly {
			c.span = spanOf(hints.Start, hints.End)
		}
	}
	return c
}

// spanOf returns the length of a range of times in ms, at most a year: the client chose both, and a longer
// range is as large for every limit. A range that ends before it starts has no length.
func spanOf(start, end int64) time.Duration {
	const year = 366 * 24 * time.Hour
	if end <= start {
		return 0
	}
	return time.Duration(min(uint64(end)-uint64(start), uint64(year.Milliseconds()))) * time.Millisecond
}

func (c *countedSeriesSet) Next() bool {
	if c.admission.remoteRead && c.err == nil {
		c.err = c.admission.checkEnded(c.ctx)
	}
	if c.err != nil || !c.SeriesSet.Next() {
		return false
	}
	c.at = c.SeriesSet.At()
	c.err = c.admission.countSeries(c.span, int64(c.at.Labels().ByteSize()))
	if c.seriesOnly && errors.Is(c.err, errLarge) {
		// Wait for a turn as a large query. That resets the counts, but the series read so
		// far stay in memory.
		n, labels := c.admission.series, c.admission.labels
		c.err = c.admission.upgrade(c.ctx)
		c.admission.series, c.admission.labels = n, labels
	}
	if c.seriesOnly && c.err == nil {
		c.err = c.admission.checkAnswered()
	}
	if c.seriesOnly && c.err == nil && c.ctx.Err() != nil {
		c.err = c.admission.api.engine.explain(context.Cause(c.ctx))
	}
	return c.err == nil
}

// At returns the current series. For a remote read its samples are counted too, because no
// engine counts them there.
func (c *countedSeriesSet) At() storage.Series {
	if c.admission.remoteRead {
		return countedReadSeries{c.at, c}
	}
	return c.at
}

func (c *countedSeriesSet) Err() error {
	if c.err != nil {
		return c.err
	}
	err := c.SeriesSet.Err()
	if err != nil && c.seriesOnly && c.ctx.Err() != nil {
		return c.admission.api.engine.explain(context.Cause(c.ctx))
	}
	if err != nil && c.admission.remoteRead {
		return cmp.Or(c.admission.checkEnded(c.ctx), err)
	}
	return err
}

// limitValues limits a list of label names or values, by number and bytes. If a list is too
// long and the request has no limit of its own, that is an error, because a shortened list
// would look complete. A request whose list is too long for a small query waits for a turn as
// a large one.
func limitValues(ctx context.Context, hints *storage.LabelHints, list func(*storage.LabelHints) ([]string, annotations.Annotations, error)) ([]string, annotations.Annotations, error) {
	a := admissionOf(ctx)
	if a == nil {
		return list(hints)
	}
	asked := storage.LabelHints{}
	if hints != nil {
		asked = *hints
	}
	limited := func(most int) ([]string, annotations.Annotations, error) {
		h := asked
		if h.Limit == 0 || h.Limit > most {
			h.Limit = most + 1
		}
		return list(&h)
	}
	most, few := a.api.limits.maxValues, a.api.limits.smallValues
	if a.large {
		few = most
	}
	got, notes, err := limited(few)
	if err == nil && len(got) > few && few < most {
		got = nil // frees the memory during the wait
		if err := a.upgrade(ctx); err != nil {
			return nil, notes, err
		}
		got, notes, err = limited(most)
	}
	switch {
	case err != nil:
		return nil, notes, a.api.engine.explain(cmp.Or(context.Cause(ctx), err))
	case len(got) > most:
		return nil, notes, fmt.Errorf("more than %d names or values: narrow the request with match[], a shorter range or limit", most)
	case ctx.Err() != nil:
		return nil, notes, a.api.engine.explain(context.Cause(ctx))
	}
	return got, notes, a.countValues(got)
}
