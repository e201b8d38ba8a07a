package tsdb

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// rests is how many minutes before a hole a series that rests has a sample at least.
const rests = 2 * int64(rest/time.Minute)

// A job is a hole that can be filled: from the instant of a node's last sample on
// to a minute edge at which all that lives has been seen again, in ms since 1970. At
// back samples came again.
type job struct {
	node           *node
	from, back, to int64
}

// together is how many nodes are filled in at once: each has all of its workloads
// of the hole in memory.
const together = 64

// Run fills in what the metrics lack and the ledger has, until ctx ends. Edges of
// minutes become blocks of their own, two hours each and the oldest first, beside
// what is live: the database takes no sample that is older than what is late by
// [Config.Late], and this way it holds none of them in memory.
func (s *Store) Run(ctx context.Context) error {
	if s.past == nil {
		return nil
	}
	tick := time.NewTicker(min(max(s.cfg.Settle/10, 50*time.Millisecond), 15*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for chunk := range slices.Chunk(s.waiting(), together) {
			began := time.Now()
			put, err := s.fill(ctx, chunk)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.log.Error("the metrics could not be filled in from the ledger; it is tried again", "nodes", len(chunk), "err", err)
				if !pause(ctx, time.Minute) {
					return nil
				}
			default:
				s.log.Info("the metrics were filled in from the ledger", "nodes", len(chunk), "samples", put, "took", time.Since(began).Round(time.Millisecond))
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// A filling is the holes of some nodes on their way.
type filling struct {
	*Store
	ids      []string
	nodes    []*hollow
	from, to int64 // minutes
}

// fill fills holes, and returns how many samples that took.
func (s *Store) fill(ctx context.Context, jobs []job) (put int64, err error) {
	f := &filling{Store: s, from: never}
	oldest := time.Now().Add(-s.cfg.Retention)
	for _, j := range jobs {
		through, err := s.past.Through(ctx, j.node.id)
		if err != nil {
			return 0, err
		}
		if through.UnixMilli() < j.to+minute {
			continue // its latest windows are not booked yet
		}
		j.from = max(j.from, oldest.UnixMilli())
		h := newHollow(j)
		f.ids = append(f.ids, j.node.id)
		f.nodes = append(f.nodes, h)
		f.from, f.to = min(f.from, h.first), max(f.to, h.last)
	}
	if len(f.nodes) == 0 {
		return 0, nil
	}
	if err := f.each(ctx, f.compare); err != nil {
		return 0, err
	}
	for _, h := range f.nodes {
		for _, t := range h.tracks {
			t.end(h.last, h.back)
		}
		names, err := s.names.Names(ctx, h.node.id, slices.Collect(maps.Keys(h.tracks)))
		if err != nil {
			return 0, err
		}
		if err := s.recall(ctx, h, names, oldest); err != nil {
			return 0, err
		}
		h.plan(names, oldest)
	}
	if put, err = f.write(ctx); err != nil {
		return put, err
	}
	s.stats.filled.Add(put)
	for _, h := range f.nodes {
		s.filled(h.job)
	}
	return put, nil
}

// perSlice is how many minutes a slice has.
const perSlice = int64(slice / time.Minute)

// each calls a function for each slice of time, the oldest first.
func (f *filling) each(ctx context.Context, do func(ctx context.Context, from, to time.Time) error) error {
	for at := f.from; at < f.to; {
		next := min(at/perSlice*perSlice+perSlice, f.to)
		if err := do(ctx, time.Unix(at*60, 0), time.Unix(next*60, 0)); err != nil {
			return err
		}
		at = next
	}
	return nil
}

// compare follows the series through a slice, and compares them with the ledger.
func (f *filling) compare(ctx context.Context, from, to time.Time) error {
	a, b := from.Unix()/60, to.Unix()/60
	for _, h := range f.nodes {
		if err := f.look(ctx, h, a, b); err != nil {
			return err
		}
		h.begun = 0
	}
	until := to
	if b == f.to {
		until = to.Add(time.Minute)
	}
	err := f.past.Minutes(ctx, f.ids, from, until, func(node int, m *batch.Minute) error {
		switch h := f.nodes[node]; {
		case h.within(m.Minute):
			h.book(m)
		case m.Minute == h.last && h.tracks[m.Workload] != nil:
			h.tracks[m.Workload].covered += m.Usage.Covered // its life did not end with the hole
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		h.settle(b)
	}
	return nil
}

// look follows the series of a node's workloads from an edge, in minutes, up to
// another one.
func (s *Store) look(ctx context.Context, h *hollow, from, to int64) error {
	start, end := from*minute+1, min(to, h.last)*minute
	if from <= h.first {
		start = (h.first - rests) * minute
	}
	if end <= h.first*minute || start > end {
		return nil
	}
	var points []point
	return s.counters(ctx, h.node, start, end, func(_ workload.ID, short batch.Short, res usage.Resource, it chunkenc.Iterator) {
		t := h.track(short)
		t.seen = true
		f := t.follower(res, h)
		if f.now.points == nil {
			f.now.points = points[:0]
		}
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			x := ended
			if !value.IsStaleNaN(v) {
				x = amount(res, v)
			}
			f.sample(at, x)
			if at%minute == 0 {
				h.live[at/minute] = struct{}{}
			}
		}
		if len(f.now.points) == 0 {
			points, f.now.points = f.now.points, nil
		} else {
			points = nil
		}
	})
}

// recall finds out what series showed last that had been still when the hole began.
func (s *Store) recall(ctx context.Context, h *hollow, names map[batch.Short]batch.Name, oldest time.Time) error {
	var ids []string
	for short, t := range h.tracks {
		name, ok := names[short]
		if ok && name.Started.UnixMilli() < h.from && slices.ContainsFunc(t.amiss, func(s stretch) bool { return !s.open && s.a == h.first }) {
			ids = append(ids, string(name.ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	only := labels.MustNewMatcher(labels.MatchRegexp, metric.Workload, strings.Join(ids, "|"))
	return s.counters(ctx, h.node, oldest.UnixMilli(), h.first*minute-1, func(_ workload.ID, short batch.Short, res usage.Resource, it chunkenc.Iterator) {
		at, v := int64(0), 0.0
		for it.Next() == chunkenc.ValFloat {
			at, v = it.At()
		}
		t := h.tracks[short]
		if at == 0 || value.IsStaleNaN(v) || t == nil {
			return
		}
		t.seen = true
		for i := range t.amiss {
			if s := &t.amiss[i]; s.res == res && !s.open && s.a == h.first {
				s.open, s.early, s.va = true, true, amount(res, v)
			}
		}
	}, only)
}

// write makes the blocks. None reaches from one slice into another: the database would
// make one of it and of what it wrote itself of the first, and take it that nothing in
// memory is as old as the end of that.
func (f *filling) write(ctx context.Context) (put int64, err error) {
	one := func(ctx context.Context, from, to time.Time) error {
		w, err := newWriter(ctx, f.cfg.Dir)
		if err != nil {
			return err
		}
		if err := f.slice(ctx, w, from, to); err != nil {
			return errors.Join(err, w.drop())
		}
		put += w.put
		return w.finish(f.log)
	}
	if err := f.each(ctx, one); err != nil {
		return put, err
	}
	end := time.Unix(f.to*60, 0)
	return put, one(ctx, end, end)
}

// slice writes the edges of one slice. The one at its end is of the next slice.
func (f *filling) slice(ctx context.Context, w *writer, from, to time.Time) error {
	for _, h := range f.nodes {
		h.forget()
	}
	err := f.past.Wholes(ctx, f.ids, from.Add(-time.Minute), to, func(node int, m *batch.NodeMinute) error {
		f.nodes[node].wholes[m.Minute] = *m
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		if err := h.close(w); err != nil {
			return err
		}
	}
	err = f.past.Minutes(ctx, f.ids, from, to, func(node int, m *batch.Minute) error {
		if h := f.nodes[node]; h.within(m.Minute) {
			return h.row(w, m)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		if (h.minute+1)%perSlice == 0 {
			continue
		}
		if err := h.close(w); err != nil {
			return err
		}
	}
	return nil
}
