package server

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

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

// tuneCollector lets this process have less garbage, in proportion, the more memory it uses, until ctx
// ends. GOGC takes precedence.
func tuneCollector(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := 100
	for tick := time.Tick(5 * time.Second); ; {
		runtimemetrics.Read(live)
		// Each change stops all goroutines for a moment.
		if p := gcPercent(live[0].Value.Uint64()); p > percent+percent/8 || p < percent-percent/8 {
			percent = p
			debug.SetGCPercent(p)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
	}
}

// gcPercent returns the garbage that a process may have, in percent of the live heap in bytes. Up to
// 256 MiB it is as much again, which is Go's default and costs least CPU time; then 256 MiB, and from
// 1 GiB on a quarter.
func gcPercent(live uint64) int {
	const usual, most, least = 256 << 20, 100, 25
	if live <= usual {
		return most
	}
	return int(max(usual*most/live, least))
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
