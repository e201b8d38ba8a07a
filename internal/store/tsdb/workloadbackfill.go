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

// maxShortLife is what the rows cover together of a workload that lived in one
// window, which live has no series of its own.
const maxShortLife = 15 * time.Second

// A workloadBackfill is how the series of one workload run through the spans of its node.
type workloadBackfill struct {
	labels     *namedWorkload // its labels; nil where it has no series
	shortLived bool           // it goes into the series of those that lived for less than a window
	part       metric.Part
	sampled    usage.Set // resources of which it has samples
	gaps       []gap     // of all its series

	first, last int64 // minutes of its rows; 0 is none
	covered     time.Duration
	head        [usage.Limit]int64 // used in the first of them
	tail        [usage.Limit]int64 // and in the others

	row  usage.Set          // what is in peak
	peak [usage.Limit]int64 // of the latest row
	refs [usage.Limit]storage.SeriesRef
	info storage.SeriesRef
}

// addUse adds what is used in a minute to the gap of a series. One that has no samples has
// one gap over the range.
func (t *workloadBackfill) addUse(r usage.Resource, m, v int64, within span) {
	for i := range t.gaps {
		g := &t.gaps[i]
		if g.res != r || !g.contains(m) {
			continue
		}
		g.addUse(m, v)
		if next := g.follower(t.gaps[i+1:]); next != nil && m == g.last {
			next.addUse(m, v)
		}
		return
	}
	if v == 0 || t.sampled.Has(r) {
		return
	}
	g := gap{res: r, from: within.first*minute - 1, to: never, first: within.first - 1, last: within.last}
	g.addUse(m, v)
	t.gaps = append(t.gaps, g)
}

// addMinute takes a row of the ledger.
func (t *workloadBackfill) addMinute(m *batch.Minute, within span) {
	if t.first == 0 {
		t.first = m.Minute
	}
	t.last = m.Minute
	t.covered += m.Usage.Covered
	m.Usage.Present.Each(func(r usage.Resource) {
		if !isCounter(r) {
			return
		}
		v := m.Usage.Amount[r]
		if m.Minute == t.first {
			t.head[r] = v
		} else {
			t.tail[r] += v
		}
		t.addUse(r, m.Minute, v, within)
	})
}

// isShortLived says whether, as far as the ledger knows, all of its life was in one window.
// One that ended later than in its last row was still meanwhile.
func (t *workloadBackfill) isShortLived(name *batch.Name) bool {
	return t.sampled == 0 && t.last-t.first <= 1 && t.covered <= maxShortLife && !name.Ended.IsZero() &&
		name.Ended.UnixMilli() < (t.last+1)*minute+maxShortLife.Milliseconds()
}

// addAll books what workloads used together that were there for two minutes at most, and
// those that have no workloadBackfill.
func (t *workloadBackfill) addAll(all []*workloadBackfill, h *nodeBackfill) {
	used := maps.Clone(h.untracked)
	for _, o := range all {
		for m := o.first; m <= o.last; m++ {
			sum := used[m]
			if sum == nil {
				sum = new([usage.Limit]int64)
				used[m] = sum
			}
			of := &o.head
			if m > o.first {
				of = &o.tail
			}
			for r, v := range of {
				sum[r] += v
			}
		}
	}
	for _, m := range slices.Sorted(maps.Keys(used)) {
		for r, v := range used[m] {
			if v == 0 {
				continue
			}
			t.addUse(usage.Resource(r), m, v, h.within)
		}
	}
}

// plan decides how each value runs.
func (t *workloadBackfill) plan() {
	t.gaps = closeGaps(t.gaps)
	reset := slices.ContainsFunc(t.gaps, func(g gap) bool { return g.mustReset() })
	for i := range t.gaps {
		t.gaps[i].plan(reset)
	}
}

// writeRow takes a row, and writes the end of a life where another one begins in it.
func (t *workloadBackfill) writeRow(w *blockWriter, n *node, m *batch.Minute) error {
	for i := range t.gaps {
		g := &t.gaps[i]
		if !m.Usage.Present.Has(g.res) {
			continue
		}
		at, last, reset := g.advance(m.Minute, m.Usage.Amount[g.res])
		if !reset {
			continue
		}
		if err := t.writeValue(w, n, g.res, at, last); err != nil {
			return err
		}
		if err := t.writeValue(w, n, g.res, at+1, 0); err != nil {
			return err
		}
	}
	if t.labels != nil && t.labels.id != metric.ShortLived {
		m.Usage.Present.Each(func(r usage.Resource) {
			if !isCounter(r) {
				t.row |= usage.SetOf(r)
				t.peak[r] = m.Usage.Amount[r]
			}
		})
	}
	return nil
}

func (t *workloadBackfill) writeValue(w *blockWriter, n *node, r usage.Resource, at, v int64) error {
	f := metric.FamilyOf(r)
	return w.add(&t.refs[r], at, f.Value(v), func() labels.Labels { return n.workloadLabels(f, t.labels.id) })
}

// writeEdge writes what there is at an edge.
func (t *workloadBackfill) writeEdge(w *blockWriter, n *node, edge int64) error {
	at, some, over := edge*minute, false, false
	for i := range t.gaps {
		g := &t.gaps[i]
		if !g.hasSample(edge) {
			continue
		}
		some = true
		if err := t.writeValue(w, n, g.res, at, g.value()); err != nil {
			return err
		}
		if g.hasEnd || edge <= g.end || t.labels.Ended.IsZero() || t.refs[g.res] == 0 {
			continue
		}
		over = true
		if err := w.add(&t.refs[g.res], at+1, staleMarker, nil); err != nil {
			return err
		}
	}
	row := t.row
	t.row = 0
	if !some {
		return nil
	}
	var err error
	row.Each(func(r usage.Resource) {
		if err == nil {
			err = t.writeValue(w, n, r, at, t.peak[r])
		}
	})
	if err == nil {
		err = w.add(&t.info, at, 1, func() labels.Labels { return n.infoLabels(t.labels) })
	}
	if err == nil && over && t.info != 0 {
		err = w.add(&t.info, at+1, staleMarker, nil)
	}
	return err
}

// isCounter says whether a resource has a counter.
func isCounter(r usage.Resource) bool { return metric.FamilyOf(r).Counter }
