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

// queryMemory is how many bytes queries may hold where nobody says: a quarter of what the
// runtime was told to keep to (GOMEMLIMIT), or of what this process may have.
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
