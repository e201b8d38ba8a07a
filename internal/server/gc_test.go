package server

import "testing"

// TestGCPercent checks how much garbage a server may have.
func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 100}, {256 * mib, 100}, {320 * mib, 80}, {512 * mib, 50}, {1024 * mib, 25}, {64 << 30, 25}} {
		if got := gcPercent(c.live); got != c.want {
			t.Errorf("of %d MiB: %d %%, want %d %%", c.live/mib, got, c.want)
		}
	}
}
