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

// A nodeBackfill rebuilds the samples of one node.
type nodeBackfill struct {
	backfillJob
	within     span   // the edges of which samples may be missing
	spans      []span // runs of these edges without any sample of the node
	first      int64  // first minute that is read
	last       int64  // end of the minutes that are read, exclusive
	workloads  map[workload.ShortID]*workloadBackfill
	shortLived *workloadBackfill
	untracked  map[int64]*[usage.Limit]int64 // use of workloads without a workloadBackfill, by minute
	started    int                           // workloads without samples, in this slice
	minute     int64                         // minute of the current rows; 0 is none yet
	edge       int64                         // last written edge, in minutes
	parts      metric.Parts
	wholes     map[int64]batch.NodeMinute // of the slice
	refs       [gaugeCount]storage.SeriesRef
	levels     []storage.SeriesRef
}

func newNodeBackfill(j backfillJob, within span, spans []span, delay time.Duration) *nodeBackfill {
	if n := len(spans); n > 0 {
		within.last = max(within.last, spans[n-1].last)
	}
	nb := &nodeBackfill{
		backfillJob: j, within: within, spans: spans,
		first: max(within.first-int64(maxSkew/time.Minute), 0), last: within.last + int64(delay/time.Minute) + 2,
		workloads: map[workload.ShortID]*workloadBackfill{}, levels: make([]storage.SeriesRef, len(metric.Levels)),
		shortLived: &workloadBackfill{labels: &namedWorkload{id: j.node.shortLived.id, seriesName: j.node.shortLived.seriesName}}, untracked: map[int64]*[usage.Limit]int64{},
	}
	for _, short := range j.node.residuals {
		nb.workload(short) // independent of the limit of workloads
	}
	return nb
}

// isUnsampled reports whether the node has no sample at an edge.
func (nb *nodeBackfill) isUnsampled(edge int64) bool {
	return slices.ContainsFunc(nb.spans, func(sp span) bool { return sp.contains(edge) })
}

// contains reports whether the rows of a minute are read for the node.
func (nb *nodeBackfill) contains(m int64) bool { return m >= nb.first && m < nb.last }

// workload returns the workloadBackfill of a workload, and creates it if needed.
func (nb *nodeBackfill) workload(short workload.ShortID) *workloadBackfill {
	if short == shortLivedID {
		return nb.shortLived
	}
	wb := nb.workloads[short]
	if wb == nil {
		wb = &workloadBackfill{}
		nb.workloads[short] = wb
	}
	return wb
}

// maxWorkloadFactor limits the workloads with series of their own in a gap, which may be
// long, to a multiple of Config.Workloads.
const maxWorkloadFactor = 5

// addMinute adds a row of the ledger. As in live samples, the use of a workload above the
// limit goes to the series of the short-lived ones. If the node exceeded the limit since the
// start, this applies to each workload without samples: one with its own series would have
// some.
func (nb *nodeBackfill) addMinute(m *batch.Minute) {
	wb := nb.workloads[m.Workload]
	switch touched := m.Minute >= nb.within.first-1 && m.Minute <= nb.within.last; {
	case wb != nil && (touched || wb.sampled != 0):
		wb.addMinute(m, nb.within)
		return
	case wb != nil && m.Minute == nb.within.last+1:
		wb.covered += m.Usage.Covered // for isShortLived
		return
	case !touched:
		return
	}
	if most := nb.node.quota.limit; !nb.node.overLimit.Load() && nb.started < most && len(nb.workloads) < maxWorkloadFactor*most {
		nb.started++
		nb.workload(m.Workload).addMinute(m, nb.within)
		return
	}
	sum := nb.untracked[m.Minute]
	if sum == nil {
		sum = new([usage.Limit]int64)
		nb.untracked[m.Minute] = sum
	}
	for r := range m.Usage.Present.All() {
		if isCounter(r) {
			sum[r] += m.Usage.Amount[r]
		}
	}
}

// plan decides which workloads have series and plans their gaps. oldest is the start of the
// retention; earlier samples are unknown.
func (nb *nodeBackfill) plan(names map[workload.ShortID]batch.Name, oldest time.Time) {
	system, idle := nb.node.residuals[0], nb.node.residuals[1]
	var shortLived []*workloadBackfill
	for short, wb := range nb.workloads {
		switch short {
		case system:
			wb.part = metric.System
		case idle:
			wb.part = metric.Idle
		}
		name, ok := names[short]
		switch {
		case ok && wb.isShortLived(&name):
			wb.shortLived, wb.gaps = true, nil
			shortLived = append(shortLived, wb)
		case !ok, wb.sampled == 0 && name.Ended.IsZero() && name.Started.Before(oldest):
			// The name is unknown; or the live workload started before the retention and has
			// no sample, so that its counters are unknown.
			wb.gaps = nil
		default:
			wb.labels, wb.ended = &namedWorkload{id: name.ID, seriesName: seriesNameOf(&name)}, !name.Ended.IsZero()
			wb.plan()
		}
	}
	nb.shortLived.addAll(shortLived, nb)
	nb.shortLived.plan()
}

// resetBlock clears the references to series of the previous block.
func (nb *nodeBackfill) resetBlock() {
	clear(nb.refs[:])
	clear(nb.levels)
	nb.wholes = map[int64]batch.NodeMinute{}
	nb.shortLived.refs, nb.shortLived.info = [usage.Limit]storage.SeriesRef{}, 0
	for _, wb := range nb.workloads {
		wb.refs, wb.info = [usage.Limit]storage.SeriesRef{}, 0
	}
}

// writeRow processes a row of the ledger, and closes the previous minute when a new one
// starts.
func (nb *nodeBackfill) writeRow(w *blockWriter, m *batch.Minute) error {
	if m.Minute != nb.minute {
		if err := nb.closeMinute(w); err != nil {
			return err
		}
		if nb.minute = m.Minute; nb.edge != nb.minute {
			// The node was away or the gap starts here: write the values before the minute.
			if err := nb.writeEdge(w, nb.minute); err != nil {
				return err
			}
		}
	}
	wb := nb.workloads[m.Workload]
	switch {
	case wb != nil && wb.first > 0 && m.Minute >= wb.first:
		nb.parts[wb.part].Add(&m.Usage)
		if wb.shortLived {
			wb = nb.shortLived
		}
	case nb.untracked[m.Minute] != nil:
		nb.parts[metric.Workloads].Add(&m.Usage)
		wb = nb.shortLived
	default:
		return nil // booked since the first pass
	}
	return wb.writeRow(w, nb.node, m)
}

// closeMinute writes the samples at the end of the current minute.
func (nb *nodeBackfill) closeMinute(w *blockWriter) error {
	if nb.minute == 0 || nb.edge > nb.minute {
		return nil
	}
	if err := nb.writeEdge(w, nb.minute+1); err != nil {
		return err
	}
	return nb.writeMachine(w)
}

// writeEdge writes the values of all workloads at an edge.
func (nb *nodeBackfill) writeEdge(w *blockWriter, edge int64) error {
	nb.edge = edge
	for _, wb := range nb.workloads {
		if err := wb.writeEdge(w, nb.node, edge); err != nil {
			return err
		}
	}
	return nb.shortLived.writeEdge(w, nb.node, edge)
}

// writeMachine writes the node's own gauges and levels for the current minute.
func (nb *nodeBackfill) writeMachine(w *blockWriter) error {
	m, ok := nb.wholes[nb.minute]
	parts := nb.parts
	nb.parts = metric.Parts{}
	if nb.node.jobs || !nb.isUnsampled(nb.minute+1) || !ok || m.Covered <= 0 {
		return nil
	}
	n, at := nb.node, (nb.minute+1)*minute
	if err := w.add(&nb.refs[cpus], at, float64(m.CPUs), func() labels.Labels { return n.nodeLabels(gauges[cpus]) }); err != nil {
		return err
	}
	bytes := float64(m.Whole.Get(usage.Memory)) / m.Covered.Seconds()
	if err := w.add(&nb.refs[memory], at, bytes, func() labels.Labels { return n.nodeLabels(gauges[memory]) }); err != nil {
		return err
	}
	for i := range metric.Levels {
		l := &metric.Levels[i]
		v, ok := l.Average(&parts, &m.Total, int64(m.Covered))
		if !ok {
			continue
		}
		if err := w.add(&nb.levels[i], at, v, func() labels.Labels { return n.levelLabels(l) }); err != nil {
			return err
		}
	}
	return nil
}
