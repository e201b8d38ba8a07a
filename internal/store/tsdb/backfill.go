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

// A backfillJob is a node of which samples may be missing in a span, and of which samples
// have come again for long enough to rebuild them.
type backfillJob struct {
	node *node
	span batch.Span
}

// nodesAtOnce is how many nodes are filled in at once: each has all of its workloads
// of its spans in memory.
const nodesAtOnce = 64

// Run fills in missing samples from the ledger, until ctx ends. Minute edges become blocks
// of two hours, the oldest first, beside the live ones: the database itself takes no sample
// that is older than [Config.OutOfOrderWindow], and this way holds none of them in memory.
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
			case put > 0:
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

// A backfill fills in the spans of some nodes.
type backfill struct {
	*Store
	ids      []string
	nodes    []*nodeBackfill
	from, to int64 // minutes
}

// readyJobs returns the nodes that can be filled in now.
func (s *Store) readyJobs() (list []backfillJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.unsampled {
		n := s.nodes[id]
		if n == nil || u.resumed == 0 {
			continue // it sends nothing yet
		}
		ready := max(u.resumed, u.To.UnixMilli()) + s.cfg.BackfillDelay.Milliseconds() + 2*minute
		if n.newestEnd.Load() < ready || time.Since(time.Unix(0, n.lastLate.Load())) < s.cfg.BackfillDelay {
			continue
		}
		list = append(list, backfillJob{n, u.Span})
	}
	return list
}

// backfill fills in the spans of nodes, and returns how many samples that took.
func (s *Store) backfill(ctx context.Context, jobs []backfillJob) (put int64, err error) {
	f := &backfill{Store: s, from: never}
	oldest := time.Now().Add(-s.cfg.Retention)
	var done []backfillJob
	for _, j := range jobs {
		ok, err := f.addNode(ctx, j, oldest)
		if err != nil {
			return 0, err
		}
		if ok {
			done = append(done, j)
		}
	}
	if len(f.nodes) > 0 {
		if put, err = f.run(ctx, oldest); err != nil {
			return put, err
		}
	}
	s.stats.backfilled.Add(put)
	for _, j := range done {
		if err := s.clearUnsampled(ctx, j); err != nil {
			return put, err
		}
	}
	return put, nil
}

// addNode finds the spans of a node. It returns false while the node's latest windows are
// not booked.
func (f *backfill) addNode(ctx context.Context, j backfillJob, oldest time.Time) (bool, error) {
	through, err := f.history.Through(ctx, j.node.id)
	end := j.node.newestEnd.Load() / minute
	if err != nil || through.UnixMilli() < end*minute {
		return false, err
	}
	within := span{max(j.span.From.UnixMilli(), oldest.UnixMilli()) / minute, min(j.span.To.UnixMilli()/minute+1, end)}
	if within.first > within.last {
		return true, nil // the samples would be too old to be kept
	}
	spans, err := f.unsampledSpans(ctx, j.node, within, end)
	if err != nil {
		return false, err
	}
	h := newNodeBackfill(j, within, spans, f.cfg.BackfillDelay)
	if err := f.scan(ctx, h); err != nil {
		return false, err
	}
	f.ids = append(f.ids, j.node.id)
	f.nodes = append(f.nodes, h)
	f.from, f.to = min(f.from, h.first), max(f.to, h.last)
	return true, nil
}

// run reads the minutes twice: first to see how each value runs, then to write it.
func (f *backfill) run(ctx context.Context, oldest time.Time) (put int64, err error) {
	if err := f.eachSlice(ctx, f.read); err != nil {
		return 0, err
	}
	for _, h := range f.nodes {
		names, err := f.names.Names(ctx, h.node.id, slices.Collect(maps.Keys(h.workloads)))
		if err != nil {
			return 0, err
		}
		if err := f.findOlderSamples(ctx, h, names, oldest); err != nil {
			return 0, err
		}
		h.plan(names, oldest)
	}
	return f.write(ctx)
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

// read adds what the ledger has of a slice to the gaps.
func (f *backfill) read(ctx context.Context, from, to time.Time) error {
	for _, h := range f.nodes {
		h.started = 0
	}
	return f.history.Minutes(ctx, f.ids, from, to, func(node int, m *batch.Minute) error {
		if h := f.nodes[node]; h.contains(m.Minute) {
			h.addMinute(m)
		}
		return nil
	})
}

// findOlderSamples finds the last values of series that had no sample for long before a span,
// as their workloads used nothing.
func (s *Store) findOlderSamples(ctx context.Context, h *nodeBackfill, names map[workload.ShortID]batch.Name, oldest time.Time) error {
	var ids []string
	end := int64(0)
	for short, t := range h.workloads {
		name, ok := names[short]
		for i := range t.gaps {
			if g := &t.gaps[i]; ok && !g.hasStart && name.Started.UnixMilli() < g.from {
				ids, end = append(ids, string(name.ID)), max(end, g.from)
				break
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	only := labels.MustNewMatcher(labels.MatchRegexp, metric.Workload, strings.Join(ids, "|"))
	return s.eachCounter(ctx, h.node, oldest.UnixMilli(), end, func(_ workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
		t := h.workloads[short]
		if t == nil {
			return
		}
		i := slices.IndexFunc(t.gaps, func(g gap) bool { return g.res == res })
		if i < 0 || t.gaps[i].hasStart {
			return
		}
		g := &t.gaps[i]
		at, v := int64(0), 0.0
		for it.Next() == chunkenc.ValFloat {
			next, x := it.At()
			if next > g.from {
				break
			}
			at, v = next, x
		}
		if at == 0 || value.IsStaleNaN(v) {
			return
		}
		t.sampled |= usage.SetOf(res)
		g.hasStart, g.from, g.startValue = true, at, amountOf(res, v)
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
