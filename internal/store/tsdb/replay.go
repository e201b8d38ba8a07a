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

// shortly is what the rows cover together of a workload that lived in one
// window, which live has no series of its own.
const shortly = 15 * time.Second

// A track is how the series of one workload run through a hole.
type track struct {
	k      *known // its labels; nil where it has no series
	brief  bool   // it goes into the series of those that lived for less than a window
	part   metric.Part
	seen   bool // it has samples about the hole
	series []follower
	amiss  []stretch // of all of them, those that are to be filled in
	gaps   []gap     // of these

	first, last int64 // minutes of its rows; 0 is none
	covered     time.Duration
	head        [usage.Limit]int64 // used in the first of them
	tail        [usage.Limit]int64 // and in the others

	row  usage.Set          // what is in peak
	peak [usage.Limit]int64 // of the latest row
	refs [usage.Limit]storage.SeriesRef
	info storage.SeriesRef
}

// follower finds that of a counter.
func (t *track) follower(r usage.Resource, h *hollow) *follower {
	for i := range t.series {
		if f := &t.series[i]; f.now.res == r {
			return f
		}
	}
	t.series = append(t.series, follow(r, h.first, h.back/minute))
	return &t.series[len(t.series)-1]
}

// book takes a row of the ledger.
func (t *track) book(m *batch.Minute, h *hollow) {
	if t.first == 0 {
		t.first = m.Minute
	}
	t.last = m.Minute
	t.covered += m.Usage.Covered
	m.Usage.Present.Each(func(r usage.Resource) {
		if !counted(r) {
			return
		}
		v := m.Usage.Amount[r]
		if m.Minute == t.first {
			t.head[r] = v
		} else {
			t.tail[r] += v
		}
		if s := t.follower(r, h).find(m.Minute); s != nil {
			s.book(m.Minute, v)
		}
	})
}

// short says whether, as far as the ledger knows, all of its life was in one window.
// One that ended later than in its last row was still meanwhile.
func (t *track) short(name *batch.Name) bool {
	return !t.seen && t.last-t.first <= 1 && t.covered <= shortly && !name.Ended.IsZero() &&
		name.Ended.UnixMilli() < (t.last+1)*minute+shortly.Milliseconds()
}

// join books what workloads used together that were there for two minutes at most, and
// those that have no track.
func (t *track) join(all []*track, h *hollow) {
	used := maps.Clone(h.rest)
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
			if s := t.follower(usage.Resource(r), h).find(m); s != nil {
				s.book(m, v)
			}
		}
	}
}

// end is called when all samples came, and all rows of which it is.
func (t *track) end(edge, since int64) {
	for i := range t.series {
		f := &t.series[i]
		f.end(edge, since)
		f.settle(edge)
		t.amiss = append(t.amiss, f.kept...)
	}
	t.series = nil
}

// plan finds out how each value runs.
func (t *track) plan() {
	for i := range t.amiss {
		t.gaps = append(t.gaps, t.amiss[i].gaps()...)
	}
	t.amiss = nil
	reborn := slices.ContainsFunc(t.gaps, func(g gap) bool { return g.reborn() })
	for i := range t.gaps {
		t.gaps[i].plan(reborn)
	}
}

// add takes a row, and writes the end of a life where another one begins in it.
func (t *track) add(w *writer, n *node, m *batch.Minute) error {
	for i := range t.gaps {
		g := &t.gaps[i]
		if !m.Usage.Present.Has(g.res) {
			continue
		}
		at, last, turns := g.add(m.Minute, m.Usage.Amount[g.res])
		if !turns {
			continue
		}
		if err := t.value(w, n, g.res, at, last); err != nil {
			return err
		}
		if err := t.value(w, n, g.res, at+1, 0); err != nil {
			return err
		}
	}
	if t.k != nil && t.k.id != metric.Brief {
		m.Usage.Present.Each(func(r usage.Resource) {
			if !counted(r) {
				t.row |= usage.SetOf(r)
				t.peak[r] = m.Usage.Amount[r]
			}
		})
	}
	return nil
}

func (t *track) value(w *writer, n *node, r usage.Resource, at, v int64) error {
	f := metric.Of(r)
	return w.add(&t.refs[r], at, f.Value(v), func() labels.Labels { return n.labels(f, t.k.id) })
}

// put writes what there is at an edge.
func (t *track) put(w *writer, n *node, edge int64) error {
	at, some, over := edge*minute, false, false
	for i := range t.gaps {
		g := &t.gaps[i]
		if !g.holds(edge) {
			continue
		}
		some = true
		if err := t.value(w, n, g.res, at, g.value()); err != nil {
			return err
		}
		if g.ends || edge <= g.end || t.k.Ended.IsZero() || t.refs[g.res] == 0 {
			continue
		}
		over = true
		if err := w.add(&t.refs[g.res], at+1, gone, nil); err != nil {
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
			err = t.value(w, n, r, at, t.peak[r])
		}
	})
	if err == nil {
		err = w.add(&t.info, at, 1, func() labels.Labels { return n.info(t.k) })
	}
	if err == nil && over && t.info != 0 {
		err = w.add(&t.info, at+1, gone, nil)
	}
	return err
}

// counted says whether a resource has a counter.
func counted(r usage.Resource) bool { return metric.Of(r).Counter }
