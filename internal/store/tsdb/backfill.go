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

// repeatMinutes is how many minutes before a gap a series that rests has a sample at least.
const repeatMinutes = 2 * int64(repeatEvery/time.Minute)

// A backfillJob is a gap that can be filled: from the instant of a node's last sample on
// to a minute edge at which all that lives has been seen again, in ms since 1970. At
// resumed samples came again.
type backfillJob struct {
	node              *node
	from, resumed, to int64
}

// nodesAtOnce is how many nodes are filled in at once: each has all of its workloads
// of the gap in memory.
const nodesAtOnce = 64

// Run fills in what the metrics lack and the ledger has, until ctx ends. Edges of
// minutes become blocks of their own, two hours each and the oldest first, beside
// what is live: the database takes no sample that is older than what is late by
// [Config.OutOfOrderWindow], and this way it holds none of them in memory.
func (s *Store) Run(ctx context.Context) error {
	if s.history == nil {
		return nil
	}
	tick := time.NewTicker(min(max(s.cfg.BackfillDelay/10, 50*time.Millisecond), 15*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for chunk := range slices.Chunk(s.readyJobs(), nodesAtOnce) {
			began := time.Now()
			put, err := s.backfill(ctx, chunk)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.log.Error("the metrics could not be filled in from the ledger; it is tried again", "nodes", len(chunk), "err", err)
				if !sleep(ctx, time.Minute) {
					return nil
				}
			default:
				s.log.Info("the metrics were filled in from the ledger", "nodes", len(chunk), "samples", put, "took", time.Since(began).Round(time.Millisecond))
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// A backfill is the gaps of some nodes on their way.
type backfill struct {
	*Store
	ids      []string
	nodes    []*nodeBackfill
	from, to int64 // minutes
}

// backfill fills gaps, and returns how many samples that took.
func (s *Store) backfill(ctx context.Context, jobs []backfillJob) (put int64, err error) {
	f := &backfill{Store: s, from: never}
	oldest := time.Now().Add(-s.cfg.Retention)
	for _, j := range jobs {
		through, err := s.history.Through(ctx, j.node.id)
		if err != nil {
			return 0, err
		}
		if through.UnixMilli() < j.to+minute {
			continue // its latest windows are not booked yet
		}
		j.from = max(j.from, oldest.UnixMilli())
		h := newNodeBackfill(j)
		f.ids = append(f.ids, j.node.id)
		f.nodes = append(f.nodes, h)
		f.from, f.to = min(f.from, h.first), max(f.to, h.last)
	}
	if len(f.nodes) == 0 {
		return 0, nil
	}
	if err := f.eachSlice(ctx, f.compare); err != nil {
		return 0, err
	}
	for _, h := range f.nodes {
		for _, t := range h.workloads {
			t.finish(h.last, h.resumed)
		}
		names, err := s.names.Names(ctx, h.node.id, slices.Collect(maps.Keys(h.workloads)))
		if err != nil {
			return 0, err
		}
		if err := s.findOlderSamples(ctx, h, names, oldest); err != nil {
			return 0, err
		}
		h.plan(names, oldest)
	}
	if put, err = f.write(ctx); err != nil {
		return put, err
	}
	s.stats.backfilled.Add(put)
	for _, h := range f.nodes {
		s.removeGap(h.backfillJob)
	}
	return put, nil
}

// sliceMinutes is how many minutes a slice has.
const sliceMinutes = int64(blockSpan / time.Minute)

// eachSlice calls a function for each slice of time, the oldest first.
func (f *backfill) eachSlice(ctx context.Context, do func(ctx context.Context, from, to time.Time) error) error {
	for at := f.from; at < f.to; {
		next := min(at/sliceMinutes*sliceMinutes+sliceMinutes, f.to)
		if err := do(ctx, time.Unix(at*60, 0), time.Unix(next*60, 0)); err != nil {
			return err
		}
		at = next
	}
	return nil
}

// compare follows the series through a slice, and compares them with the ledger.
func (f *backfill) compare(ctx context.Context, from, to time.Time) error {
	a, b := from.Unix()/60, to.Unix()/60
	for _, h := range f.nodes {
		if err := f.scanSeries(ctx, h, a, b); err != nil {
			return err
		}
		h.started = 0
	}
	until := to
	if b == f.to {
		until = to.Add(time.Minute)
	}
	err := f.history.Minutes(ctx, f.ids, from, until, func(node int, m *batch.Minute) error {
		switch h := f.nodes[node]; {
		case h.contains(m.Minute):
			h.addMinute(m)
		case m.Minute == h.last && h.workloads[m.Workload] != nil:
			h.workloads[m.Workload].covered += m.Usage.Covered // its life did not end with the gap
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		h.dropMatched(b)
	}
	return nil
}

// scanSeries follows the series of a node's workloads from an edge, in minutes, up to
// another one.
func (s *Store) scanSeries(ctx context.Context, h *nodeBackfill, from, to int64) error {
	start, end := from*minute+1, min(to, h.last)*minute
	if from <= h.first {
		start = (h.first - repeatMinutes) * minute
	}
	if end <= h.first*minute || start > end {
		return nil
	}
	var points []point
	return s.eachCounter(ctx, h.node, start, end, func(_ workload.ID, short batch.ShortID, res usage.Resource, it chunkenc.Iterator) {
		t := h.workload(short)
		t.sampled = true
		f := t.cursor(res, h)
		if f.current.points == nil {
			f.current.points = points[:0]
		}
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			x := lifeEnd
			if !value.IsStaleNaN(v) {
				x = amountOf(res, v)
			}
			f.addSample(at, x)
			if at%minute == 0 {
				h.sampled[at/minute] = struct{}{}
			}
		}
		if len(f.current.points) == 0 {
			points, f.current.points = f.current.points, nil
		} else {
			points = nil
		}
	})
}

// findOlderSamples finds out what series showed last that had been still when the gap began.
func (s *Store) findOlderSamples(ctx context.Context, h *nodeBackfill, names map[batch.ShortID]batch.Name, oldest time.Time) error {
	var ids []string
	for short, t := range h.workloads {
		name, ok := names[short]
		if ok && name.Started.UnixMilli() < h.from && slices.ContainsFunc(t.mismatched, func(s segment) bool { return !s.hasStart && s.start == h.first }) {
			ids = append(ids, string(name.ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	only := labels.MustNewMatcher(labels.MatchRegexp, metric.Workload, strings.Join(ids, "|"))
	return s.eachCounter(ctx, h.node, oldest.UnixMilli(), h.first*minute-1, func(_ workload.ID, short batch.ShortID, res usage.Resource, it chunkenc.Iterator) {
		at, v := int64(0), 0.0
		for it.Next() == chunkenc.ValFloat {
			at, v = it.At()
		}
		t := h.workloads[short]
		if at == 0 || value.IsStaleNaN(v) || t == nil {
			return
		}
		t.sampled = true
		for i := range t.mismatched {
			if s := &t.mismatched[i]; s.res == res && !s.hasStart && s.start == h.first {
				s.hasStart, s.startEarlier, s.startValue = true, true, amountOf(res, v)
			}
		}
	}, only)
}

// write makes the blocks. None reaches from one slice into another: the database would
// make one of it and of what it wrote itself of the first, and take it that nothing in
// memory is as old as the end of that.
func (f *backfill) write(ctx context.Context) (put int64, err error) {
	one := func(ctx context.Context, from, to time.Time) error {
		w, err := newBlockWriter(ctx, f.cfg.Dir)
		if err != nil {
			return err
		}
		if err := f.writeSlice(ctx, w, from, to); err != nil {
			return errors.Join(err, w.discard())
		}
		put += w.written
		return w.finish(f.log)
	}
	if err := f.eachSlice(ctx, one); err != nil {
		return put, err
	}
	end := time.Unix(f.to*60, 0)
	return put, one(ctx, end, end)
}

// writeSlice writes the edges of one slice. The one at its end is of the next slice.
func (f *backfill) writeSlice(ctx context.Context, w *blockWriter, from, to time.Time) error {
	for _, h := range f.nodes {
		h.resetBlock()
	}
	err := f.history.Wholes(ctx, f.ids, from.Add(-time.Minute), to, func(node int, m *batch.NodeMinute) error {
		f.nodes[node].wholes[m.Minute] = *m
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		if err := h.closeMinute(w); err != nil {
			return err
		}
	}
	err = f.history.Minutes(ctx, f.ids, from, to, func(node int, m *batch.Minute) error {
		if h := f.nodes[node]; h.contains(m.Minute) {
			return h.writeRow(w, m)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, h := range f.nodes {
		if (h.minute+1)%sliceMinutes == 0 {
			continue
		}
		if err := h.closeMinute(w); err != nil {
			return err
		}
	}
	return nil
}
