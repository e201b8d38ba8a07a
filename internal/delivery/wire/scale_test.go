package wire

import (
	"math"
	"testing"
)

// TestScale checks quotients, and that an amount stays as it is if there is none or it is too large.
func TestScale(t *testing.T) {
	for _, c := range []struct{ amount, length, of, want int64 }{
		{10, 3, 4, 7}, {0, 3, 4, 0}, {10, 0, 4, 0}, {10, 3, 0, 10}, {10, 3, -1, 10}, {-10, 3, 4, -10}, {10, -3, 4, 10},
		{math.MaxInt64, 1, 1, math.MaxInt64}, {math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{1 << 62, 2, 1, 1 << 62}, {1 << 62, 4, 2, 1 << 62}, {1<<62 - 1, 2, 1, 1<<63 - 2}, {1 << 62, 4, 1, 1 << 62}, {1 << 62, 8, 3, 1 << 62}, {7, 1, 1, 7},
		{math.MaxInt64, math.MaxInt64, 1, math.MaxInt64}, {5, math.MaxInt64, 1, 5}, {3, 1 << 62, 2, 3 << 61},
	} {
		if got := scale(c.amount, c.length, c.of); got != c.want {
			t.Errorf("%d x %d / %d = %d, want %d", c.amount, c.length, c.of, got, c.want)
		}
	}
}
