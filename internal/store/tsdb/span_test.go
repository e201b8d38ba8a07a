package tsdb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
)

// A point is a sample: ms since 1970, and an amount. lifeEnd stands for a stale marker.
type point struct{ at, v int64 }

const lifeEnd = int64(-1)

// minute returns the minute of a point; a point at an edge is of the minute before.
func (p *point) minute() int64 { return (p.at - 1) / minute }

// filled returns the backfilled samples of a counter from the edge first to last; its node
// has no sample at the edges of spans.
func filled(samples []point, rows map[int64]int64, first, last int64, spans []span) (put []point) {
	within := span{first, last}
	c := seriesScan{res: usage.CPU, within: within, spans: spans}
	for _, p := range samples {
		v := metric.FamilyOf(usage.CPU).Value(p.v)
		if p.v == lifeEnd {
			v = staleMarker
		}
		if !c.add(p.at, v) {
			break
		}
	}
	t := workloadBackfill{}
	if c.seen {
		c.close(never)
		t = workloadBackfill{gaps: c.gaps, sampled: usage.SetOf(usage.CPU)}
	}
	for m := first - 1; m <= last; m++ {
		t.addUse(usage.CPU, m, rows[m], within)
	}
	t.plan()
	for edge := first; edge <= last; edge++ {
		for i := range t.gaps {
			g := &t.gaps[i]
			if at, v, reset := g.advance(edge-1, rows[edge-1]); reset {
				put = append(put, point{at, v}, point{at + 1, 0})
			}
			if g.hasSample(edge) {
				put = append(put, point{edge * minute, g.value()})
			}
		}
	}
	return put
}

// grows returns the growth of samples in each minute as PromQL's increase() computes it.
func grows(samples []point) map[int64]int64 {
	by, prev, alive := map[int64]int64{}, int64(0), false
	for _, p := range samples {
		if p.v == lifeEnd {
			continue
		}
		if alive {
			by[p.minute()] += increase(prev, p.v)
		}
		prev, alive = p.v, true
	}
	return by
}

func merged(t interface{ Fatalf(string, ...any) }, a, b []point) []point {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(all); i++ {
		if all[i].at == all[i-1].at {
			t.Fatalf("two samples at %d ms: %d and %d", all[i].at, all[i-1].v, all[i].v)
		}
	}
	return all
}

// Typical gaps. Times are in seconds, the ledger's minutes start at 0, and the node has no
// sample at the edges of lost.
func TestFilled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		samples []point
		rows    []int64
		lost    span
		want    string
	}{
		{"nothing is missing", []point{{0, 5}, {60, 7}, {120, 8}}, []int64{2, 1}, span{}, ""},
		{"idle", []point{{0, 5}, {70, 5}, {130, 5}, {180, 5}}, []int64{0, 0, 0}, span{}, ""},
		{"idle, then busy within a minute", []point{{0, 5}, {70, 5}, {150, 9}, {180, 10}}, []int64{0, 0, 5}, span{}, ""},
		{"idle while the node has no samples", []point{{0, 5}, {30, 5}, {150, 5}, {210, 5}}, []int64{0, 0, 0, 0}, span{1, 2}, ""},
		{"busy", []point{{0, 5}, {20, 6}, {200, 25}, {240, 27}}, []int64{5, 7, 4, 6}, span{1, 3}, "60:10 120:17 180:21"},
		{"busy, then idle", []point{{0, 5}, {200, 12}, {260, 12}}, []int64{3, 4, 0, 0}, span{1, 3}, "60:8 120:12 180:12"},
		{"no sample after the gap", []point{{0, 5}, {20, 6}}, []int64{3, 4, 0, 0}, span{1, 4}, "60:8 120:12"},
		{"another life", []point{{0, 5}, {20, 6}, {200, 4}, {240, 9}}, []int64{5, 3, 3, 7}, span{1, 3}, "60:10 120:13 150:14 150.001:0 180:2"},
		{"another life with samples in between", []point{{0, 5}, {70, 8}, {80, 0}, {90, 1}, {240, 9}}, []int64{3, 2, 4, 3}, span{1, 3}, "60:8 120:2 180:6"},
		{"another life with a sample at its start", []point{{0, 50}, {150, 0}, {180, 2}}, []int64{5, 3, 4}, span{1, 2}, "60:55 120:58 135:60 135.001:0"},
		{"started in the gap", []point{{150, 9}, {180, 10}}, []int64{0, 5, 5}, span{1, 2}, "60:0 120:5"},
		{"started before the gap", []point{{150, 19}, {180, 20}}, []int64{0, 5, 5}, span{1, 2}, "60:10 120:15"},
		{"no samples", nil, []int64{0, 5, 3, 0}, span{0, 4}, "60:0 120:5 180:8"},
		{"a life that ended, and another one", []point{{0, 5}, {20, 6}, {30, lifeEnd}, {150, 9}, {180, 9}}, []int64{1, 0, 9}, span{1, 2}, "0:0 60:0 120:0"},
		{"samples show more than the use", []point{{0, 5}, {180, 20}}, []int64{1, 2, 3}, span{1, 2}, "60:6 120:8"},
		{"samples show less than the use", []point{{0, 50}, {180, 60}}, []int64{10, 10, 10}, span{1, 2}, "60:60 120:60"},
		{"no samples for long, while other series have some", []point{{0, 5}, {240, 20}}, []int64{1, 2, 3, 4}, span{}, "60:6 120:8 180:11"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rows := map[int64]int64{}
			for i, v := range tc.rows {
				rows[100+int64(i)] = v
			}
			var samples []point
			for _, p := range tc.samples {
				samples = append(samples, point{100*minute + p.at*1000, p.v})
			}
			var spans []span
			if tc.lost != (span{}) {
				spans = []span{{100 + tc.lost.first, 100 + tc.lost.last}}
			}
			var got []string
			for _, p := range filled(samples, rows, 100, 100+int64(len(tc.rows)), spans) {
				got = append(got, fmt.Sprintf("%v:%d", float64(p.at-100*minute)/1000, p.v))
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("put %s, want %s", got, tc.want)
			}
		})
	}
}

// Whichever windows of a history are lost: after the backfill a series grows in each minute
// by the use of that minute. Lives start only if consecutive windows are lost, because the
// division of a minute with two gaps may be unknown. Losses that touch no edge are left out,
// because the backfill writes samples at edges only.
func TestFilledGrows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := history{T: t, rows: map[int64]int64{}, at: 1000*minute + rapid.Int64Range(0, minute).Draw(t, "begin")}
		for range rapid.IntRange(0, 10).Draw(t, "before") {
			h.window(false)
		}
		first := h.at / minute
		h.scattered = rapid.Bool().Draw(t, "some windows lost")
		h.window(true)
		for range rapid.IntRange(0, 60).Draw(t, "windows") {
			h.window(!h.scattered || rapid.Bool().Draw(t, "lost"))
		}
		if !h.scattered && len(h.spans) == 0 {
			t.Skip("no lost edge")
		}
		for end := (h.at/minute + 4) * minute; h.at < end; {
			h.window(false)
		}
		last := h.at / minute
		// Drop samples after the range, which a backfill does not read.
		h.samples = slices.DeleteFunc(h.samples, func(p point) bool { return p.at > last*minute })
		put := filled(h.samples, h.rows, first, last, h.spans)
		if len(h.spans) == 0 && len(put) > 0 {
			t.Fatalf("put %v, although the node has all samples", put)
		}
		got := grows(merged(t, h.samples, put))
		for m := first; m < last; m++ {
			if d := got[m] - h.rows[m]; d > 2 || d < -2 {
				t.Fatalf("minute %d grew by %d, want %d; lost %v of\n%v\nput %v\nrows %v", m, got[m], h.rows[m], h.spans, h.samples, put, h.rows)
			}
		}
	})
}

// A history generates the samples of one counter, window by window.
type history struct {
	*rapid.T
	rows      map[int64]int64
	samples   []point
	at        int64 // ms
	total     int64
	known     bool  // the server knows the current total
	shown     int64 // time of the last sample
	reset     bool  // a second life has started
	scattered bool  // lost windows are scattered, and no second life starts
	spans     []span
	lost      bool // the last window was lost
}

// lose records the edges that a lost window touches.
func (h *history) lose(from, to int64) {
	for e := from/minute + 1; e*minute <= to; e++ {
		if n := len(h.spans); n > 0 && h.spans[n-1].last == e-1 {
			h.spans[n-1].last = e
		} else {
			h.spans = append(h.spans, span{e, e})
		}
	}
}

// window appends one window, and loses it if lost is set.
func (h *history) window(lost bool) {
	from, to := h.at, h.at+rapid.Int64Range(5_000, 70_000).Draw(h.T, "length")
	h.at = to
	if lost = lost && (!h.scattered || h.lost || from/minute != to/minute); lost {
		h.lose(from, to)
	}
	h.lost = lost
	used := int64(0)
	// A second life that is idle from its start cannot be distinguished from the first one.
	if h.reset || rapid.Bool().Draw(h.T, "busy") {
		used = rapid.Int64Range(1e6, 1e9).Draw(h.T, "used")
	}
	if h.total > 0 && !h.reset && !h.scattered && rapid.IntRange(0, 20).Draw(h.T, "life") == 0 {
		h.total, h.reset, used = 0, true, max(used, 1e6)
	}
	if used <= 0 {
		if h.known = h.known && !lost; h.known && to-h.shown > minute {
			h.put(to)
		}
		return
	}
	if !lost && h.total == 0 {
		h.samples = append(h.samples, point{from + 1, 0})
	}
	before := h.total
	for at := from; at < to; {
		next := min(to, (at/minute+1)*minute)
		upTo := before + used*(next-from)/(to-from)
		h.rows[at/minute] += upTo - h.total
		if h.total = upTo; !lost {
			h.put(next)
		}
		at = next
	}
	h.known = !lost
}

func (h *history) put(at int64) {
	h.shown = at
	h.samples = append(h.samples, point{at, h.total})
}
