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

// countedSeriesSet counts each series against the admission of its request: the series are
// in memory together, and the limit of samples does not count them.
type countedSeriesSet struct {
	storage.SeriesSet
	ctx        context.Context
	admission  *admission
	span       time.Duration
	seriesOnly bool // the request reads series without their samples
	at         storage.Series
	err        error
}

// countSeries wraps a set so that its series are counted; hints may be nil.
func countSeries(ctx context.Context, set storage.SeriesSet, hints *storage.SelectHints) storage.SeriesSet {
	t := admissionOf(ctx)
	if t == nil {
		return set
	}
	c := &countedSeriesSet{SeriesSet: set, ctx: ctx, admission: t}
	if hints != nil {
		c.seriesOnly = hints.Func == "series"
		if !c.seriesOnly {
			c.span = min(time.Duration(hints.End-hints.Start)*time.Millisecond, 366*24*time.Hour)
		}
	}
	return c
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
		// Keep the series read so far and wait for a turn as a large query.
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

// limitValues limits a list of label names or values, by number and bytes. A list that is too
// long and that the request did not limit itself is an error, because half of it would look
// complete. A list that is too long for a small query waits for a turn as a large one.
func limitValues(ctx context.Context, hints *storage.LabelHints, list func(*storage.LabelHints) ([]string, annotations.Annotations, error)) ([]string, annotations.Annotations, error) {
	t := admissionOf(ctx)
	if t == nil {
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
	most, few := t.api.limits.maxValues, t.api.limits.smallValues
	if t.large {
		few = most
	}
	got, notes, err := limited(few)
	if err == nil && len(got) > few && few < most {
		got = nil // while it waits
		if err := t.upgrade(ctx); err != nil {
			return nil, notes, err
		}
		got, notes, err = limited(most)
	}
	switch {
	case err != nil:
		return nil, notes, t.api.engine.explain(cmp.Or(context.Cause(ctx), err))
	case len(got) > most:
		return nil, notes, fmt.Errorf("more than %d names or values: narrow the request with match[], a shorter range or limit", most)
	case ctx.Err() != nil:
		return nil, notes, t.api.engine.explain(context.Cause(ctx))
	}
	return got, notes, t.countValues(got)
}
