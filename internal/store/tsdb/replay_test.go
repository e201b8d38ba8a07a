package tsdb

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// What lived for less than a window has no series of its own; what rested until after
// the hole, or was seen again, has one.
func TestShort(t *testing.T) {
	const at = int64(1000) // minute
	end := time.UnixMilli((at + 1) * minute)
	for name, c := range map[string]struct {
		track track
		ended time.Time
		want  bool
	}{
		"one window":         {track{first: at, last: at, covered: 10 * time.Second}, end.Add(-5 * time.Second), true},
		"over an edge":       {track{first: at - 1, last: at, covered: 11 * time.Second}, end.Add(-50 * time.Second), true},
		"told a bit late":    {track{first: at, last: at, covered: 10 * time.Second}, end.Add(9 * time.Second), true},
		"several windows":    {track{first: at, last: at, covered: 20 * time.Second}, end.Add(-5 * time.Second), false},
		"rested, then ended": {track{first: at, last: at, covered: 10 * time.Second}, end.Add(time.Minute), false},
		"it lives":           {track{first: at, last: at, covered: 10 * time.Second}, time.Time{}, false},
		"it has samples":     {track{first: at, last: at, covered: 10 * time.Second, seen: true}, end.Add(-5 * time.Second), false},
	} {
		if got := c.track.short(&batch.Name{Ended: c.ended}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A node of which the ledger has very many workloads does not fill the memory as it is
// filled in: what is too many is booked together.
func TestHollowBounds(t *testing.T) {
	n := &node{id: "n1", residuals: residuals("n1"), brief: &known{}, quota: quota{most: 10}}
	h := newHollow(job{node: n, to: 10 * slice.Milliseconds()})
	residuals := len(h.tracks)
	var want, rest int64
	next := batch.Short(1)
	for at := range int64(10) {
		h.begun = 0 // the next slice
		for range 100 {
			m := batch.Minute{Minute: at * perSlice, Workload: next}
			m.Usage.Put(usage.CPU, int64(next), usage.Measured)
			h.book(&m)
			next++
			want += int64(next) - 1
		}
		if n := len(h.tracks) - residuals; n > 10*int(at+1) || n > perHole*10 {
			t.Fatalf("%d tracks after %d slices", n, at+1)
		}
	}
	for _, sum := range h.rest {
		rest += sum[usage.CPU]
	}
	for _, track := range h.tracks {
		rest += track.head[usage.CPU] + track.tail[usage.CPU]
	}
	if rest != want {
		t.Errorf("%d are booked, want %d", rest, want)
	}
}
