package tsdb

import (
	"slices"
	"testing"
)

// Windows in any order become the intervals that they cover.
func TestIntervals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		add, want []interval
	}{
		{[]interval{{0, 10e3}, {10e3, 20e3}}, []interval{{0, 20e3}}},
		{[]interval{{0, 10e3}, {10_900, 20e3}}, []interval{{0, 20e3}}},
		{[]interval{{0, 10e3}, {60e3, 70e3}}, []interval{{0, 10e3}, {60e3, 70e3}}},
		{[]interval{{0, 10e3}, {60e3, 70e3}, {10e3, 60e3}}, []interval{{0, 70e3}}},
		{[]interval{{60e3, 70e3}, {0, 10e3}, {30e3, 40e3}}, []interval{{0, 10e3}, {30e3, 40e3}, {60e3, 70e3}}},
		{[]interval{{0, 10e3}, {0, 10e3}, {5e3, 7e3}}, []interval{{0, 10e3}}},
	} {
		var s intervals
		for _, window := range c.add {
			s = s.add(window.from, window.to)
		}
		if !slices.Equal(s, c.want) {
			t.Errorf("%v become %v, want %v", c.add, s, c.want)
		}
		if last := c.want[len(c.want)-1].from; s.latestStart() != last {
			t.Errorf("%v: the latest interval starts at %d, want %d", c.add, s.latestStart(), last)
		}
	}
	var s intervals
	for i := range int64(1000) {
		s = s.add(i*60e3, i*60e3+1)
	}
	if len(s) != maxIntervals || s.latestStart() != 999*60e3 {
		t.Errorf("%d intervals, the latest starts at %d", len(s), s.latestStart())
	}
}
