package server

import (
	"errors"
	"math"
	"runtime/debug"

	"mete.dev/mete/internal/host/hostfs"
)

const (
	leastRoom = 64 << 20
	mostRoom  = 8 << 30
)

// room is how many bytes queries may hold where nobody says: a quarter of what the
// runtime was told to keep to (GOMEMLIMIT), or of what this process may have.
func room() (int64, error) {
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
	return min(max(whole/4, leastRoom), mostRoom), nil
}
