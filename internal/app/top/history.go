package top

import (
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
)

// A history holds what the machine and its workloads used in the last readings. Readings have
// numbers, also those that failed or did not come; reading n is in slot n % top.Kept.
type history struct {
	every   time.Duration           // planned between two readings
	next    int                     // number of the next reading
	failed  int                     // readings since the latest good one
	latest  time.Time               // of the latest good one
	lengths [top.Kept]time.Duration // time that each covers
	machine track                   // its used CPU
	rows    map[workload.ID]*track
}

// A track holds the figures of one workload.
type track struct {
	from, to    int // the first reading, and the one after the latest
	cpu, memory figures
}

// figures take 5 bytes each, as there are many.
type figures struct {
	value   [top.Kept]float32
	quality [top.Kept]usage.Quality
}

func newHistory(every time.Duration) history {
	return history{every: every, rows: map[workload.ID]*track{}}
}

// add takes a reading and drops the workloads that it lacks, except keep.
func (h *history) add(m *live.Machine, keep workload.ID) {
	// A late reading of this machine covers a longer tick; one of a server has none.
	length := max(m.Tick, h.every)
	if since := m.Time.Sub(h.latest) - time.Duration(h.failed)*h.every; h.next > 0 && since > 0 {
		missing := max(0, (since-length)/h.every)
		length = since - missing*h.every
		for range min(missing, top.Kept) {
			h.step(h.every)
		}
	}
	n := h.next
	h.step(length)
	h.latest, h.failed = m.Time, 0
	var used live.Figures
	if m.CPU.Whole > 0 {
		used[live.CPU] = live.Figure{Value: m.CPU.Workloads + m.CPU.System, Quality: usage.Measured}
	}
	h.machine.put(n, &used)
	for i, f := range top.Uses(m) {
		t := h.rows[m.Rows[i].ID]
		if t == nil {
			t = &track{}
			h.rows[m.Rows[i].ID] = t
		}
		t.put(n, &f)
	}
	for id, t := range h.rows {
		if t.to <= n && id != keep {
			delete(h.rows, id)
		}
	}
}

// fail takes a reading that failed.
func (h *history) fail() {
	if h.next > 0 {
		h.failed++
		h.step(h.every)
	}
}

// step gives the next number to a reading.
func (h *history) step(length time.Duration) {
	h.lengths[h.next%top.Kept] = length
	h.next++
}

// put sets the figures of reading n. Those since the latest are absent.
func (t *track) put(n int, f *live.Figures) {
	if t.to == 0 {
		t.from, t.to = n, n
	}
	for t.to = max(t.to, n-top.Kept); t.to < n; t.to++ {
		t.cpu.set(t.to, live.Figure{})
		t.memory.set(t.to, live.Figure{})
	}
	if t.to == n { // of two rows with one id, the first counts
		t.cpu.set(n, f[live.CPU])
		t.memory.set(n, f[live.Memory])
		t.to++
	}
}

func (f *figures) set(n int, v live.Figure) {
	f.value[n%top.Kept], f.quality[n%top.Kept] = float32(v.Value), v.Quality
}

func (f *figures) get(n int) live.Figure {
	return live.Figure{Value: float64(f.value[n%top.Kept]), Quality: f.quality[n%top.Kept]}
}

// of returns the past of a workload.
func (h *history) of(id workload.ID) *top.Past { return h.past(h.rows[id]) }

// past returns the past of a track up to the latest reading; nil if it has none.
func (h *history) past(t *track) *top.Past {
	if t == nil || t.to == 0 {
		return nil
	}
	p := &top.Past{First: max(t.from, h.next-top.Kept)}
	for n := p.First; n < h.next; n++ {
		var cpu, memory live.Figure
		if n < t.to {
			cpu, memory = t.cpu.get(n), t.memory.get(n)
		}
		p.CPU, p.Memory = append(p.CPU, cpu), append(p.Memory, memory)
		p.Length += h.lengths[n%top.Kept]
	}
	return p
}

// clone returns a copy that does not change with h.
func (h *history) clone() *history {
	c := *h
	c.rows = make(map[workload.ID]*track, len(h.rows))
	for id, t := range h.rows {
		u := *t
		c.rows[id] = &u
	}
	return &c
}
