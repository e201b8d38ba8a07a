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

// countedSeriesSet is a set of series in which each is counted against the admission of its
// request: they are in memory together, and no limit of samples counts them.
type countedSeriesSet struct {
	storage.SeriesSet
	ctx        context.Context
	admission  *admission
	span       time.Duration
	seriesOnly bool // it is the series that are asked for, not what is in them
	err        error
}

// countSeries counts the series of a set; nil hints are none.
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
		// Those that are there are kept, and the rest waits for its turn.
		n := c.admission.series
		c.err = c.admission.upgrade(c.ctx)
		c.admission.series = n
	}
	if c.seriesOnly && c.err == nil && c.ctx.Err() != nil {
		c.err = c.admission.api.engine.explain(c.ctx.Err())
	}
	return c.err == nil
}

// At is a series, whose samples are counted too where they are held: no engine does it there.
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

// limitValues bounds a list of names or values: one that is longer than may be, and that
// who asks did not limit himself, is an error, as half of it would look like all.
func limitValues(ctx context.Context, hints *storage.LabelHints, list func(*storage.LabelHints) ([]string, annotations.Annotations, error)) ([]string, annotations.Annotations, error) {
	t := admissionOf(ctx)
	if t == nil {
		return list(hints)
	}
	most, within := t.api.limits.maxValues, storage.LabelHints{}
	if hints != nil {
		within = *hints
	}
	if within.Limit == 0 || within.Limit > most {
		within.Limit = most + 1
	}
	got, notes, err := list(&within)
	switch {
	case err != nil:
		return nil, notes, t.api.engine.explain(err)
	case len(got) > most:
		return nil, notes, fmt.Errorf("there are more than %d: ask for fewer with match[], a shorter range or limit", most)
	}
	return got, notes, nil
}
