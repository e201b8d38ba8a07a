package tsdb

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A nodeBackfill is a node whose spans are filled in.
type nodeBackfill struct {
	backfillJob
	within     span   // the edges of which samples may be missing
	spans      []span // of these, at which the node has none
	first      int64  // minutes that are read, from first ...
	last       int64  // ... before last
	workloads  map[workload.ShortID]*workloadBackfill
	shortLived *workloadBackfill
	untracked  map[int64]*[usage.Limit]int64 // used by those without a workloadBackfill, by minute
	started    int                           // workloads that have no samples, in this slice
	minute     int64                         // whose rows come now; 0 is none yet
	edge       int64                         // the last one that was written, in minutes
	parts      metric.Parts
	wholes     map[int64]batch.NodeMinute // of a slice
	refs       [gaugeCount]storage.SeriesRef
	levels     []storage.SeriesRef
}

func newNodeBackfill(j backfillJob, within span, spans []span, delay time.Duration) *nodeBackfill {
	if n := len(spans); n > 0 {
		within.last = max(within.last, spans[n-1].last)
	}
	h := &nodeBackfill{
		backfillJob: j, within: within, spans: spans,
		first: max(within.first-int64(maxSkew/time.Minute), 0), last: within.last + int64(delay/time.Minute) + 2,
		workloads: map[workload.ShortID]*workloadBackfill{}, levels: make([]storage.SeriesRef, len(metric.Levels)),
		shortLived: &workloadBackfill{labels: &namedWorkload{id: metric.ShortLived, Name: j.node.shortLived.Name}}, untracked: map[int64]*[usage.Limit]int64{},
	}
	for _, short := range j.node.residuals {
		h.workload(short) // however many others there are
	}
	return h
}

// isUnsampled reports whether the node has no sample at an edge.
func (h *nodeBackfill) isUnsampled(edge int64) bool {
	return slices.ContainsFunc(h.spans, func(sp span) bool { return sp.contains(edge) })
}

// contains reports whether rows of a minute are read for the node.
func (h *nodeBackfill) contains(m int64) bool { return m >= h.first && m < h.last }

// workload finds that of a workload.
func (h *nodeBackfill) workload(short workload.ShortID) *workloadBackfill {
	if short == shortLivedID {
		return h.shortLived
	}
	t := h.workloads[short]
	if t == nil {
		t = &workloadBackfill{}
		h.workloads[short] = t
	}
	return t
}

// maxWorkloadFactor is how many times as many workloads have series of their own in a gap, which may
// be long, as have them at once.
const maxWorkloadFactor = 5

// addMinute takes a row of the ledger. As in live samples, a workload above the limit is
// booked to the series of the short-lived ones. If the node was above the limit since the
// start, that is each workload without samples: had it lived at another time, it would have
// some.
func (h *nodeBackfill) addMinute(m *batch.Minute) {
	t := h.workloads[m.Workload]
	switch touched := m.Minute >= h.within.first-1 && m.Minute <= h.within.last; {
	case t != nil && (touched || t.sampled != 0):
		t.addMinute(m, h.within)
		return
	case t != nil && m.Minute == h.within.last+1:
		t.covered += m.Usage.Covered // its life did not end with the range
		return
	case !touched:
		return
	}
	if most := h.node.quota.limit; !h.node.overLimit.Load() && h.started < most && len(h.workloads) < maxWorkloadFactor*most {
		h.started++
		h.workload(m.Workload).addMinute(m, h.within)
		return
	}
	sum := h.untracked[m.Minute]
	if sum == nil {
		sum = new([usage.Limit]int64)
		h.untracked[m.Minute] = sum
	}
	m.Usage.Present.Each(func(r usage.Resource) {
		if isCounter(r) {
			sum[r] += m.Usage.Amount[r]
		}
	})
}

// plan finds out which series there are, and how they run. What is older than all
// that is kept is not known.
func (h *nodeBackfill) plan(names map[workload.ShortID]batch.Name, oldest time.Time) {
	system, idle := h.node.residuals[0], h.node.residuals[1]
	var shortLived []*workloadBackfill
	for short, t := range h.workloads {
		switch short {
		case system:
			t.part = metric.System
		case idle:
			t.part = metric.Idle
		}
		name, ok := names[short]
		switch {
		case ok && t.isShortLived(&name):
			t.shortLived, t.gaps = true, nil
			shortLived = append(shortLived, t)
		case !ok, t.sampled == 0 && name.Ended.IsZero() && name.Started.Before(oldest):
			// Nobody says what it is; or it is still, and what it has come to is
			// not known before it does something.
			t.gaps = nil
		default:
			t.labels = &namedWorkload{id: name.ID, Name: name}
			t.plan()
		}
	}
	h.shortLived.addAll(shortLived, h)
	h.shortLived.plan()
}

// resetBlock forgets what belongs to a block.
func (h *nodeBackfill) resetBlock() {
	clear(h.refs[:])
	clear(h.levels)
	h.wholes = map[int64]batch.NodeMinute{}
	h.shortLived.refs, h.shortLived.info = [usage.Limit]storage.SeriesRef{}, 0
	for _, t := range h.workloads {
		t.refs, t.info = [usage.Limit]storage.SeriesRef{}, 0
	}
}

// writeRow takes a row of minutes.
func (h *nodeBackfill) writeRow(w *blockWriter, m *batch.Minute) error {
	if m.Minute != h.minute {
		if err := h.closeMinute(w); err != nil {
			return err
		}
		if h.minute = m.Minute; h.edge != h.minute {
			// It was away, or the gap begins: here they begin to grow.
			if err := h.writeEdge(w, h.minute); err != nil {
				return err
			}
		}
	}
	t := h.workloads[m.Workload]
	switch {
	case t != nil && t.first > 0 && m.Minute >= t.first:
		h.parts[t.part].Add(&m.Usage)
		if t.shortLived {
			t = h.shortLived
		}
	case h.untracked[m.Minute] != nil:
		h.parts[metric.Workloads].Add(&m.Usage)
		t = h.shortLived
	default:
		return nil // it was booked since
	}
	return t.writeRow(w, h.node, m)
}

// closeMinute writes the edge at which the minute ends whose rows came.
func (h *nodeBackfill) closeMinute(w *blockWriter) error {
	if h.minute == 0 || h.edge > h.minute {
		return nil
	}
	if err := h.writeEdge(w, h.minute+1); err != nil {
		return err
	}
	return h.writeMachine(w)
}

// writeEdge writes the values of all workloads at an edge.
func (h *nodeBackfill) writeEdge(w *blockWriter, edge int64) error {
	h.edge = edge
	for _, t := range h.workloads {
		if err := t.writeEdge(w, h.node, edge); err != nil {
			return err
		}
	}
	return h.shortLived.writeEdge(w, h.node, edge)
}

// writeMachine writes what the node as a whole had and did in the minute.
func (h *nodeBackfill) writeMachine(w *blockWriter) error {
	m, ok := h.wholes[h.minute]
	parts := h.parts
	h.parts = metric.Parts{}
	if !h.isUnsampled(h.minute+1) || !ok || m.Covered <= 0 {
		return nil
	}
	n, at := h.node, (h.minute+1)*minute
	if err := w.add(&h.refs[cpus], at, float64(m.CPUs), func() labels.Labels { return n.nodeLabels(gauges[cpus]) }); err != nil {
		return err
	}
	bytes := float64(m.Whole.Get(usage.Memory)) / m.Covered.Seconds()
	if err := w.add(&h.refs[memory], at, bytes, func() labels.Labels { return n.nodeLabels(gauges[memory]) }); err != nil {
		return err
	}
	for i := range metric.Levels {
		l := &metric.Levels[i]
		v, ok := l.Average(&parts, &m.Total, int64(m.Covered))
		if !ok {
			continue
		}
		if err := w.add(&h.levels[i], at, v, func() labels.Labels { return n.levelLabels(l) }); err != nil {
			return err
		}
	}
	return nil
}
