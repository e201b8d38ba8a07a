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
	c.err = c.admission.countSeries(c.span)
	if c.seriesOnly && errors.Is(c.err, errLarge) {
		// Keep the series read so far and wait for a turn as a large query.
		n := c.admission.series
		c.err = c.admission.upgrade(c.ctx)
		c.admission.series = n
	}
	if c.seriesOnly && c.err == nil && c.ctx.Err() != nil {
		c.err = c.admission.api.engine.explain(c.ctx.Err())
	}
	return c.err == nil
}

// At returns the current series. For a remote read its samples are counted too, because no
// engine counts them there.
func (c *countedSeriesSet) At() storage.Series {
	if c.admission.remoteRead {
		return countedReadSeries{c.SeriesSet.At(), c}
	}
	return c.SeriesSet.At()
}

func (c *countedSeriesSet) Err() error {
	if c.err != nil {
		return c.err
	}
	err := c.SeriesSet.Err()
	if err != nil && c.admission.remoteRead {
		return cmp.Or(c.admission.checkEnded(c.ctx), err)
	}
	return err
}

// limitValues limits a list of label names or values. A list that is too long and that the
// request did not limit itself is an error, because half of it would look complete.
func limitValues(ctx context.Context, hints *storage.LabelHints, list func(*storage.LabelHints) ([]string, annotations.Annotations, error)) ([]string, annotations.Annotations, error) {
	t := admissionOf(ctx)
	if t == nil {
		return list(hints)
	}
	most, limited := t.api.limits.maxValues, storage.LabelHints{}
	if hints != nil {
		limited = *hints
	}
	if limited.Limit == 0 || limited.Limit > most {
		limited.Limit = most + 1
	}
	got, notes, err := list(&limited)
	switch {
	case err != nil:
		return nil, notes, t.api.engine.explain(err)
	case len(got) > most:
		return nil, notes, fmt.Errorf("more than %d names or values: narrow the request with match[], a shorter range or limit", most)
	}
	return got, notes, nil
}
