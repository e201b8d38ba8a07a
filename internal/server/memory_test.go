package server_test

import (
	"math"
	"runtime/debug"
	"testing"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/server"
)

// A server collects garbage before it reaches its limit of memory, unless GOMEMLIMIT says when.
func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := h.MemoryLimit()
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[int64]int64{math.MaxInt64: whole / 4 * 3, 1 << 30: 1 << 30} {
		debug.SetMemoryLimit(set)
		if err := server.LimitMemory(); err != nil {
			t.Fatal(err)
		}
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("limit %d of %d with GOMEMLIMIT=%d, want %d", got, whole, set, want)
		}
	}
}
