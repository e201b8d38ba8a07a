package api

import (
	"math"
	"testing"
	"time"
)

// A client chooses both ends of a range: no pair may give a length below zero, which would take memory
// away from the sum that it is counted in.
func TestSpanOf(t *testing.T) {
	const year = 366 * 24 * time.Hour
	for _, c := range []struct {
		start, end int64
		want       time.Duration
	}{
		{0, 0, 0},
		{1000, 3500, 2500 * time.Millisecond},
		{-1000, 1000, 2 * time.Second},
		{1000, 0, 0},
		{0, year.Milliseconds() - 1, year - time.Millisecond},
		{0, year.Milliseconds() + 1, year},
		{0, math.MaxInt64, year},
		{math.MinInt64, math.MaxInt64, year},
		{math.MaxInt64, math.MinInt64, 0},
	} {
		if got := spanOf(c.start, c.end); got != c.want {
			t.Errorf("spanOf(%d, %d) = %v, want %v", c.start, c.end, got, c.want)
		}
	}
}
