package server

import (
	"errors"
	"math"
	"runtime/debug"

	"mete.dev/mete/internal/host/hostfs"
)

const (
	minQueryMemory = 64 << 20
	maxQueryMemory = 8 << 30
)

// queryMemory returns the default memory limit of queries in bytes: a quarter of GOMEMLIMIT
// or, without it, of the memory available to this process.
func queryMemory() (int64, error) {
	whole := debug.SetMemoryLimit(-1)
	if whole == math.MaxInt64 {
		h, err := hostfs.Open("/")
		if err != nil {
			return 0, err
		}
		if whole, err = h.MemoryLimit(); err != nil {
			return 0, errors.Join(err, h.Close())
		}
		if err := h.Close(); err != nil {
			return 0, err
		}
	}
	return min(max(whole/4, minQueryMemory), maxQueryMemory), nil
}
