package tsdb

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
)

// maxShortLife limits the time that the rows of a short-lived workload cover together. Such
// a workload lived within one window, and live samples give it no series of its own.
const maxShortLife = 15 * time.Second

// A workloadBackfill rebuilds the samples of one workload.
type workloadBackfill struct {
	labels     *namedWorkload // source of the labels; nil without series
	ended      bool           // its end is known
	shortLived bool           // its use goes to the series of the short-lived workloads
	part       metric.Part
	sampled    usage.Set // resources with samples
	gaps       []gap     // of all its series

	first, last int64 // minutes of its rows; 0 is none
	covered     time.Duration
	head        [usage.Limit]int64 // use in the first minute
	tail        [usage.Limit]int64 // use in the other minutes

	row  usage.Set          // resources set in peak
	peak [usage.Limit]int64 // of the latest row
	refs [usage.Limit]storage.SeriesRef
	info storage.SeriesRef
}

// addUse adds the use of a minute to the gap of a series. A series without samples has one
// gap over the whole range.
func (wb *workloadBackfill) addUse(r usage.Resource, m, v int64, within span) {
	for i := range wb.gaps {
		g := &wb.gaps[i]
		if g.res != r || !g.contains(m) {
			continue
		}
		g.addUse(m, v)
		if next := g.follower(wb.gaps[i+1:]); next != nil && m == g.last {
			next.addUse(m, v)
		}
		return
	}
	if v == 0 || wb.sampled.Has(r) {
		return
	}
	g := gap{res: r, from: within.first*minute - 1, to: never, first: within.first - 1, last: within.last}
	g.addUse(m, v)
	wb.gaps = append(wb.gaps, g)
}

// addMinute adds a row of the ledger.
func (wb *workloadBackfill) addMinute(m *batch.Minute, within span) {
	if wb.first == 0 {
		wb.first = m.Minute
	}
	wb.last = m.Minute
	wb.covered += m.Usage.Covered
	for r := range m.Usage.Present.All() {
		if !isCounter(r) {
			continue
		}
		v := m.Usage.Amount[r]
		if m.Minute == wb.first {
			wb.head[r] = v
		} else {
			wb.tail[r] += v
		}
		wb.addUse(r, m.Minute, v, within)
	}
}

// isShortLived reports whether the whole life was within one window, as far as the ledger
// knows. A workload that ended well after its last row was idle meanwhile and lived longer.
func (wb *workloadBackfill) isShortLived(name *batch.Name) bool {
	return wb.sampled == 0 && wb.last-wb.first <= 1 && wb.covered <= maxShortLife && !name.Ended.IsZero() &&
		name.Ended.UnixMilli() < (wb.last+1)*minute+maxShortLife.Milliseconds()
}

// addAll adds the use of the short-lived workloads in all and of the untracked ones.
func (wb *workloadBackfill) addAll(all []*workloadBackfill, nb *nodeBackfill) {
	used := maps.Clone(nb.untracked)
	for _, o := range all {
		for m := o.first; m <= o.last; m++ {
			sum := used[m]
			if sum == nil {
				sum = new([usage.Limit]int64)
				used[m] = sum
			}
			use := &o.head
			if m > o.first {
				use = &o.tail
			}
			for r, v := range use {
				sum[r] += v
			}
		}
	}
	for _, m := range slices.Sorted(maps.Keys(used)) {
		for r, v := range used[m] {
			wb.addUse(usage.Resource(r), m, v, nb.within)
		}
	}
}

// plan plans all gaps.
func (wb *workloadBackfill) plan() {
	wb.gaps = closeGaps(wb.gaps)
	reset := slices.ContainsFunc(wb.gaps, func(g gap) bool { return g.mustReset() })
	for i := range wb.gaps {
		wb.gaps[i].plan(reset)
	}
}

// writeRow processes a row. It writes the end of a life and the start of the next one if
// they are in the row's minute.
func (wb *workloadBackfill) writeRow(w *blockWriter, n *node, m *batch.Minute) error {
	for i := range wb.gaps {
		g := &wb.gaps[i]
		at, last, reset := g.advance(m.Minute, m.Usage.Amount[g.res])
		if !reset {
			continue
		}
		if err := wb.writeValue(w, n, g.res, at, last); err != nil {
			return err
		}
		if err := wb.writeValue(w, n, g.res, at+1, 0); err != nil {
			return err
		}
	}
	if wb.labels != nil && wb.labels.id != n.shortLived.id {
		for r := range m.Usage.Present.All() {
			if !isCounter(r) {
				wb.row |= usage.SetOf(r)
				wb.peak[r] = m.Usage.Amount[r]
			}
		}
	}
	return nil
}

func (wb *workloadBackfill) writeValue(w *blockWriter, n *node, r usage.Resource, at, v int64) error {
	f := metric.FamilyOf(r)
	return w.add(&wb.refs[r], at, f.Value(v), func() labels.Labels { return n.workloadLabels(f, wb.labels.id) })
}

// writeEdge writes the samples at an edge.
func (wb *workloadBackfill) writeEdge(w *blockWriter, n *node, edge int64) error {
	at, written, ended := edge*minute, false, false
	for i := range wb.gaps {
		g := &wb.gaps[i]
		if !g.hasSample(edge) {
			continue
		}
		written = true
		if err := wb.writeValue(w, n, g.res, at, g.value()); err != nil {
			return err
		}
		if g.hasEnd || edge <= g.end || !wb.ended || wb.refs[g.res] == 0 {
			continue
		}
		ended = true
		if err := w.add(&wb.refs[g.res], at+1, staleMarker, nil); err != nil {
			return err
		}
	}
	row := wb.row
	wb.row = 0
	if !written {
		return nil
	}
	for r := range row.All() {
		if err := wb.writeValue(w, n, r, at, wb.peak[r]); err != nil {
			return err
		}
	}
	err := w.add(&wb.info, at, 1, func() labels.Labels { return n.infoLabels(wb.labels) })
	if err == nil && ended && wb.info != 0 {
		err = w.add(&wb.info, at+1, staleMarker, nil)
	}
	return err
}

// isCounter reports whether the series of a resource is a counter.
func isCounter(r usage.Resource) bool { return metric.FamilyOf(r).Counter }
