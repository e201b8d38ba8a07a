package tsdb

import (
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
)

// A hollow is a node with a hole.
type hollow struct {
	job
	first  int64 // the edge at which the hole begins, in minutes
	last   int64 // and at which it ends
	tracks map[batch.Short]*track
	brief  *track
	rest   map[int64]*[usage.Limit]int64 // used by those that have no track, by minute
	begun  int                           // tracks of what has no samples, in this slice
	live   map[int64]struct{}            // edges at which there are samples
	minute int64                         // whose rows come now; 0 is none yet
	edge   int64                         // the last one that was written, in minutes
	parts  metric.Parts
	wholes map[int64]batch.NodeMinute // of a slice
	refs   [gaugeCount]storage.SeriesRef
	levels []storage.SeriesRef
}

func newHollow(j job) *hollow {
	h := &hollow{
		job: j, first: j.from / minute, last: j.to / minute,
		tracks: map[batch.Short]*track{}, live: map[int64]struct{}{}, levels: make([]storage.SeriesRef, len(metric.Levels)),
		brief: &track{k: &known{id: metric.Brief, Name: j.node.brief.Name}}, rest: map[int64]*[usage.Limit]int64{},
	}
	for _, short := range j.node.residuals {
		h.track(short) // however many others there are
	}
	return h
}

// within says whether a row is of the node's hole.
func (h *hollow) within(m int64) bool { return m >= h.first && m < h.last }

// track finds that of a workload.
func (h *hollow) track(short batch.Short) *track {
	if short == briefly {
		return h.brief
	}
	t := h.tracks[short]
	if t == nil {
		t = &track{}
		h.tracks[short] = t
	}
	return t
}

// perHole is how many times as many workloads have series of their own in a hole, which may
// be long, as have them at once.
const perHole = 5

// book takes a row of the ledger. As in what is live, what is one of too many is booked
// to the series of the brief ones. Of a node that had too many since the start this is all
// that has no samples: had it lived at another time than in the hole, it would be there.
func (h *hollow) book(m *batch.Minute) {
	if t := h.tracks[m.Workload]; t != nil {
		t.book(m, h)
		return
	}
	if most := h.node.quota.most; !h.node.crowded.Load() && h.begun < most && len(h.tracks) < perHole*most {
		h.begun++
		h.track(m.Workload).book(m, h)
		return
	}
	sum := h.rest[m.Minute]
	if sum == nil {
		sum = new([usage.Limit]int64)
		h.rest[m.Minute] = sum
	}
	m.Usage.Present.Each(func(r usage.Resource) {
		if counted(r) {
			sum[r] += m.Usage.Amount[r]
		}
	})
}

// settle forgets what is as it should be, up to an edge. What lived for less than a
// window is known at the end.
func (h *hollow) settle(edge int64) {
	for _, t := range h.tracks {
		for i := range t.series {
			t.series[i].settle(edge)
		}
	}
}

// plan finds out which series there are, and how they run. What is older than all
// that is kept is not known.
func (h *hollow) plan(names map[batch.Short]batch.Name, oldest time.Time) {
	system, idle := h.node.residuals[0], h.node.residuals[1]
	var brief []*track
	for short, t := range h.tracks {
		switch short {
		case system:
			t.part = metric.System
		case idle:
			t.part = metric.Idle
		}
		name, ok := names[short]
		switch {
		case ok && t.short(&name):
			t.brief, t.amiss = true, nil
			brief = append(brief, t)
		case !ok, !t.seen && name.Ended.IsZero() && name.Started.Before(oldest):
			// Nobody says what it is; or it is still, and what it has come to is
			// not known before it does something.
			t.amiss = nil
		default:
			t.k = &known{id: name.ID, Name: name}
			t.plan()
		}
	}
	h.brief.join(brief, h)
	h.brief.end(h.last, h.back)
	h.brief.plan()
}

// forget forgets what belongs to a block.
func (h *hollow) forget() {
	clear(h.refs[:])
	clear(h.levels)
	h.wholes = map[int64]batch.NodeMinute{}
	h.brief.refs, h.brief.info = [usage.Limit]storage.SeriesRef{}, 0
	for _, t := range h.tracks {
		t.refs, t.info = [usage.Limit]storage.SeriesRef{}, 0
	}
}

// row takes a row of minutes.
func (h *hollow) row(w *writer, m *batch.Minute) error {
	if m.Minute != h.minute {
		if err := h.close(w); err != nil {
			return err
		}
		if h.minute = m.Minute; h.edge != h.minute {
			// It was away, or the hole begins: here they begin to grow.
			if err := h.put(w, h.minute); err != nil {
				return err
			}
		}
	}
	t := h.tracks[m.Workload]
	switch {
	case t != nil && m.Minute >= t.first:
		h.parts[t.part].Add(&m.Usage)
		if t.brief {
			t = h.brief
		}
	case h.rest[m.Minute] != nil:
		h.parts[metric.Workloads].Add(&m.Usage)
		t = h.brief
	default:
		return nil // it was booked since
	}
	return t.add(w, h.node, m)
}

// close writes the edge at which the minute ends whose rows came.
func (h *hollow) close(w *writer) error {
	if h.minute == 0 || h.edge > h.minute {
		return nil
	}
	if err := h.put(w, h.minute+1); err != nil {
		return err
	}
	return h.machine(w)
}

// put writes the values of all workloads at an edge.
func (h *hollow) put(w *writer, edge int64) error {
	h.edge = edge
	for _, t := range h.tracks {
		if err := t.put(w, h.node, edge); err != nil {
			return err
		}
	}
	return h.brief.put(w, h.node, edge)
}

// machine writes what the node as a whole had and did in the minute.
func (h *hollow) machine(w *writer) error {
	m, ok := h.wholes[h.minute]
	parts := h.parts
	h.parts = metric.Parts{}
	if _, live := h.live[h.minute+1]; live || !ok || m.Covered <= 0 {
		return nil
	}
	n, at := h.node, (h.minute+1)*minute
	if err := w.add(&h.refs[cpus], at, float64(m.CPUs), func() labels.Labels { return n.own(gauges[cpus]) }); err != nil {
		return err
	}
	bytes := float64(m.Whole.Of(usage.Memory)) / m.Covered.Seconds()
	if err := w.add(&h.refs[memory], at, bytes, func() labels.Labels { return n.own(gauges[memory]) }); err != nil {
		return err
	}
	for i := range metric.Levels {
		l := &metric.Levels[i]
		v, ok := l.At(&parts, &m.Total, int64(m.Covered))
		if !ok {
			continue
		}
		if err := w.add(&h.levels[i], at, v, func() labels.Labels { return n.level(l) }); err != nil {
			return err
		}
	}
	return nil
}
