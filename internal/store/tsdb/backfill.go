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
	"mete.dev/mete/internal/x/sleep"
)

// A backfillJob is a node whose samples of span may be missing and can be rebuilt.
type backfillJob struct {
	node *node
	span batch.Span
}

// nodesAtOnce limits the nodes of one backfill, which has all their workloads in memory.
const nodesAtOnce = 64

// Run rebuilds missing samples from the ledger until ctx ends. It writes samples at minute
// edges as blocks of two hours, the oldest first, because the database accepts no sample
// older than [Config.OutOfOrderWindow] and would hold younger ones in memory.
func (s *Store) Run(ctx context.Context) error {
	if s.history == nil {
		return nil
	}
	tick := time.NewTicker(backfillInterval(s.cfg.BackfillDelay))
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
				s.log.Error("cannot rebuild missing metrics from the ledger; retrying", "nodes", len(chunk), "err", err)
				if sleep.For(ctx, time.Minute) != nil {
					return nil
				}
			case put > 0:
				s.log.Info("rebuilt missing metrics from the ledger", "nodes", len(chunk), "samples", put, "took", time.Since(began).Round(time.Millisecond))
			}
		}
	}
}

// backfillInterval returns how often Run looks for nodes whose samples can be rebuilt.
func backfillInterval(delay time.Duration) time.Duration {
	return min(max(delay/10, 50*time.Millisecond), 15*time.Second)
}

// A backfill rebuilds the samples of some nodes.
type backfill struct {
	*Store
	ids      []string
	nodes    []*nodeBackfill
	from, to int64 // minutes
}

// readyJobs returns the nodes whose samples can be rebuilt now.
func (s *Store) readyJobs() (list []backfillJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.unsampled {
		n := s.nodes[id]
		if n == nil || u.resumed == 0 {
			continue // the node has not sent windows yet
		}
		ready := max(u.resumed, u.To.UnixMilli()) + s.cfg.BackfillDelay.Milliseconds() + 2*minute
		if n.newestEnd.Load() < ready || time.Since(time.Unix(0, n.lastLate.Load())) < s.cfg.BackfillDelay {
			continue
		}
		list = append(list, backfillJob{n, u.Span})
	}
	return list
}

// backfill rebuilds the samples of jobs and returns the number of written samples.
func (s *Store) backfill(ctx context.Context, jobs []backfillJob) (put int64, err error) {
	b := &backfill{Store: s, from: never}
	oldest := time.Now().Add(-s.cfg.Retention)
	var done []backfillJob
	for _, j := range jobs {
		ok, err := b.addNode(ctx, j, oldest)
		if err != nil {
			return put, err
		}
		if ok {
			done = append(done, j)
		}
	}
	if len(b.nodes) > 0 {
		if put, err = b.run(ctx, oldest); err != nil {
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
func (b *backfill) addNode(ctx context.Context, j backfillJob, oldest time.Time) (bool, error) {
	through, err := b.history.Through(ctx, j.node.id)
	end := j.node.newestEnd.Load() / minute
	if err != nil || through.UnixMilli() < end*minute {
		return false, err
	}
	within := span{max(j.span.From.UnixMilli(), oldest.UnixMilli()) / minute, min(j.span.To.UnixMilli()/minute+1, end)}
	if within.first > within.last {
		return true, nil // the samples are older than the retention
	}
	spans, err := b.unsampledSpans(ctx, j.node, within, end)
	nb := newNodeBackfill(j, within, spans, b.cfg.BackfillDelay)
	if err := errors.Join(err, b.scan(ctx, nb)); err != nil {
		return false, err
	}
	b.ids = append(b.ids, j.node.id)
	b.nodes = append(b.nodes, nb)
	b.from, b.to = min(b.from, nb.first), max(b.to, nb.last)
	return true, nil
}

// run reads the minutes twice: first to plan the gaps, then to write the samples.
func (b *backfill) run(ctx context.Context, oldest time.Time) (put int64, err error) {
	if err := b.eachSlice(ctx, b.read); err != nil {
		return put, err
	}
	for _, nb := range b.nodes {
		names, err := b.names.Names(ctx, nb.node.id, slices.Collect(maps.Keys(nb.workloads)))
		if err != nil {
			return put, err
		}
		if err := b.findOlderSamples(ctx, nb, names, oldest); err != nil {
			return put, err
		}
		nb.plan(names, oldest)
	}
	return b.write(ctx)
}

// sliceMinutes is the length of a slice in minutes.
const sliceMinutes = int64(blockSpan / time.Minute)

// eachSlice calls do for each slice of time, the oldest first.
func (b *backfill) eachSlice(ctx context.Context, do func(ctx context.Context, from, to time.Time) error) error {
	for at := b.from; at < b.to; {
		next := min(at/sliceMinutes*sliceMinutes+sliceMinutes, b.to)
		if err := do(ctx, time.UnixMilli(at*minute), time.UnixMilli(next*minute)); err != nil {
			return err
		}
		at = next
	}
	return nil
}

// read adds the use in a slice to the gaps.
func (b *backfill) read(ctx context.Context, from, to time.Time) error {
	for _, nb := range b.nodes {
		nb.started = 0
	}
	return b.history.Minutes(ctx, b.ids, from, to, func(node int, m *batch.Minute) error {
		// No window has what is reserved, so there are no samples of it.
		m.Usage.Present &= usage.Metered
		if nb := b.nodes[node]; m.Usage.Present != 0 && nb.contains(m.Minute) {
			nb.addMinute(m)
		}
		return nil
	})
}

// findOlderSamples finds the last values of series without a sample shortly before their
// gap, because their workloads used nothing.
func (s *Store) findOlderSamples(ctx context.Context, nb *nodeBackfill, names map[workload.ShortID]batch.Name, oldest time.Time) error {
	var ids []string
	var end int64
	for short, wb := range nb.workloads {
		name, ok := names[short]
		older := false
		for i := range wb.gaps {
			if g := &wb.gaps[i]; ok && !g.hasStart && name.Started.UnixMilli() < g.from {
				older, end = true, max(end, g.from)
			}
		}
		if older {
			ids = append(ids, string(name.ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	only := labels.MustNewMatcher(labels.MatchRegexp, metric.Workload, strings.Join(ids, "|"))
	return s.eachCounter(ctx, nb.node, oldest.UnixMilli(), end, func(_ workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
		wb := nb.workloads[short]
		i := slices.IndexFunc(wb.gaps, func(g gap) bool { return g.res == res })
		if i < 0 || wb.gaps[i].hasStart {
			return
		}
		g := &wb.gaps[i]
		at, v := never, 0.0
		for it.Next() == chunkenc.ValFloat {
			next, x := it.At()
			if next > g.from {
				break
			}
			at, v = next, x
		}
		if at == never || value.IsStaleNaN(v) {
			return
		}
		wb.sampled |= usage.SetOf(res)
		g.hasStart, g.from, g.startValue = true, at, amountOf(res, v)
	}, only)
}

// write writes the blocks, each within one slice. The database would compact a longer block
// with its own of the first slice, and then assume that no sample in memory is older than
// the end of the compacted block.
func (b *backfill) write(ctx context.Context) (put int64, err error) {
	writeBlock := func(ctx context.Context, from, to time.Time) error {
		w, err := newBlockWriter(ctx, b.cfg.Dir)
		if err != nil {
			return err
		}
		if err := b.writeSlice(ctx, w, from, to); err != nil {
			return errors.Join(err, w.discard())
		}
		put += w.written
		return w.finish(b.log)
	}
	err = b.eachSlice(ctx, writeBlock)
	return put, err
}

// writeSlice writes the edges of one slice. The edge at its end belongs to the next slice; that at the
// end of the last one gets no samples, because the minutes that are read end later than the gaps.
func (b *backfill) writeSlice(ctx context.Context, w *blockWriter, from, to time.Time) error {
	for _, nb := range b.nodes {
		nb.resetBlock()
	}
	err := b.history.Wholes(ctx, b.ids, from.Add(-time.Minute), to, func(node int, m *batch.NodeMinute) error {
		b.nodes[node].wholes[m.Minute] = *m
		return nil
	})
	if err != nil {
		return err
	}
	for _, nb := range b.nodes {
		if err := nb.closeMinute(w); err != nil {
			return err
		}
	}
	err = b.history.Minutes(ctx, b.ids, from, to, func(node int, m *batch.Minute) error {
		// No window has what is reserved, so there are no samples of it.
		m.Usage.Present &= usage.Metered
		if nb := b.nodes[node]; m.Usage.Present != 0 && nb.contains(m.Minute) {
			return nb.writeRow(w, m)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, nb := range b.nodes {
		if (nb.minute+1)%sliceMinutes == 0 {
			continue
		}
		if err := nb.closeMinute(w); err != nil {
			return err
		}
	}
	return nil
}
