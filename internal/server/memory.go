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

// LimitMemory makes this process collect garbage more often before it reaches the memory that it may
// have: Go's limit becomes three quarters of the machine's memory or, if that is less, of the limits of
// its control groups. The kernel would kill a server whose garbage alone exceeds a group's limit.
// GOMEMLIMIT takes precedence.
func LimitMemory() error {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return nil
	}
	whole, err := availableMemory()
	if err == nil {
		debug.SetMemoryLimit(whole / 4 * 3)
	}
	return err
}

// queryMemory returns the default memory limit of queries in bytes: a quarter of GOMEMLIMIT
// or, without it, of the memory available to this process.
func queryMemory() (int64, error) {
	whole := debug.SetMemoryLimit(-1)
	if whole == math.MaxInt64 {
		var err error
		if whole, err = availableMemory(); err != nil {
			return 0, err
		}
	}
	return min(max(whole/4, minQueryMemory), maxQueryMemory), nil
}

// availableMemory returns how much memory this process may have, in bytes.
func availableMemory() (int64, error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return 0, err
	}
	whole, err := h.MemoryLimit()
	return whole, errors.Join(err, h.Close())
}
