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

// counting is a set of series in which each is counted against the ticket of its
// request: they are in memory together, and no limit of samples counts them.
type counting struct {
	storage.SeriesSet
	ctx   context.Context
	t     *ticket
	span  time.Duration
	names bool // it is the series that are asked for, not what is in them
	err   error
}

// countedSet counts the series of a set; nil hints are none.
func countedSet(ctx context.Context, set storage.SeriesSet, hints *storage.SelectHints) storage.SeriesSet {
	t := ticketOf(ctx)
	if t == nil {
		return set
	}
	c := &counting{SeriesSet: set, ctx: ctx, t: t}
	if hints != nil {
		c.names = hints.Func == "series"
		if !c.names {
			c.span = min(time.Duration(hints.End-hints.Start)*time.Millisecond, 366*24*time.Hour)
		}
	}
	return c
}

func (c *counting) Next() bool {
	if c.t.reads && c.err == nil {
		c.err = c.t.ended(c.ctx)
	}
	if c.err != nil || !c.SeriesSet.Next() {
		return false
	}
	c.err = c.t.count(c.span)
	if c.names && errors.Is(c.err, errLarge) {
		// Those that are there are kept, and the rest waits for its turn.
		n := c.t.series
		c.err = c.t.grow(c.ctx)
		c.t.series = n
	}
	if c.names && c.err == nil && c.ctx.Err() != nil {
		c.err = c.t.a.engines.explain(c.ctx.Err())
	}
	return c.err == nil
}

// At is a series, whose samples are counted too where they are held: no engine does it there.
func (c *counting) At() storage.Series {
	if c.t.reads {
		return readSeries{c.SeriesSet.At(), c}
	}
	return c.SeriesSet.At()
}

func (c *counting) Err() error {
	if c.err != nil {
		return c.err
	}
	err := c.SeriesSet.Err()
	if err != nil && c.t.reads {
		return cmp.Or(c.t.ended(c.ctx), err)
	}
	return err
}

// counted bounds a list of names or values: one that is longer than may be, and that
// who asks did not limit himself, is an error, as half of it would look like all.
func counted(ctx context.Context, hints *storage.LabelHints, list func(*storage.LabelHints) ([]string, annotations.Annotations, error)) ([]string, annotations.Annotations, error) {
	t := ticketOf(ctx)
	if t == nil {
		return list(hints)
	}
	most, within := t.a.limits.values, storage.LabelHints{}
	if hints != nil {
		within = *hints
	}
	if within.Limit == 0 || within.Limit > most {
		within.Limit = most + 1
	}
	got, notes, err := list(&within)
	switch {
	case err != nil:
		return nil, notes, t.a.engines.explain(err)
	case len(got) > most:
		return nil, notes, fmt.Errorf("there are more than %d: ask for fewer with match[], a shorter range or limit", most)
	}
	return got, notes, nil
}
