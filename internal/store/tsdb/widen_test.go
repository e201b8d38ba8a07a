package tsdb

import (
	"math"
	"testing"
)

// TestWiden checks the ends of numbers: a query for all time must find something.
func TestWiden(t *testing.T) {
	for _, c := range [][4]int64{
		{0, 100, -maxEvenWindow, 100 + maxEvenWindow},
		{math.MinInt64, math.MaxInt64, math.MinInt64, math.MaxInt64},
		{0, math.MaxInt64 - 1, -maxEvenWindow, math.MaxInt64},
	} {
		if from, to := widen(c[0], c[1]); from != c[2] || to != c[3] {
			t.Errorf("widen(%d, %d) = %d, %d, want %d, %d", c[0], c[1], from, to, c[2], c[3])
		}
	}
}
