package api

import (
	"context"
	"errors"
	"runtime/metrics"
	"sync"
	"time"
)

// errMemory is why a query is ended that is in the way of others.
var errMemory = errors.New("too much memory")

// watchInterval is how often memory is looked at while there are queries.
const watchInterval = 20 * time.Millisecond

// A memoryWatch ends queries when all of them together take more memory than there is for
// them: limits count samples and series, and what else there may be shows only here.
type memoryWatch struct {
	memory int64

	mu       sync.Mutex
	running  []*run // in the order in which they began
	watching bool
	// What is in memory without queries is the least that was seen in this minute and
	// the one before it.
	thisMinute, lastMinute int64
	minute                 time.Time
	// Not before these many rounds of the collector is it known what ending one freed.
	minCycles uint64
}

// run is a query that is computed.
type run struct {
	large  bool
	began  time.Time
	cancel context.CancelCauseFunc
}

// begin puts a query under watch. The context is ended with errMemory as its cause
// where it has to stop; end is to be called when it has.
func (w *memoryWatch) begin(ctx context.Context, large bool) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &run{large, time.Now(), cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = append(w.running, r)
	if !w.watching {
		w.watching = true
		now, _ := liveHeap()
		if time.Since(w.minute) > 2*time.Minute {
			w.lastMinute, w.thisMinute, w.minute = 0, now, time.Now()
		}
		w.thisMinute = min(orMax(w.thisMinute), now)
		go w.loop()
	}
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, one := range w.running {
			if one == r {
				w.running = append(w.running[:i:i], w.running[i+1:]...)
				return
			}
		}
	}
}

// loop watches until there are no queries.
func (w *memoryWatch) loop() {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for now := range tick.C {
		w.mu.Lock()
		if len(w.running) == 0 {
			w.watching = false
			w.mu.Unlock()
			return
		}
		used, rounds := liveHeap()
		w.check(used, rounds, now)
		w.mu.Unlock()
	}
}

// check ends queries where there is too much in memory: the last of the large ones,
// and the small ones only where there is none.
func (w *memoryWatch) check(now int64, rounds uint64, at time.Time) {
	if at.Sub(w.minute) > time.Minute {
		w.lastMinute, w.thisMinute, w.minute = w.thisMinute, now, at
	}
	w.thisMinute = min(orMax(w.thisMinute), now)
	if now-min(orMax(w.lastMinute), w.thisMinute) <= w.memory || rounds < w.minCycles {
		return
	}
	w.minCycles = rounds + 2
	for i := len(w.running) - 1; i >= 0; i-- {
		if r := w.running[i]; r.large {
			r.cancel(errMemory)
			w.running = append(w.running[:i:i], w.running[i+1:]...)
			return
		}
	}
	var left []*run
	for _, r := range w.running {
		if at.Sub(r.began) < 100*time.Millisecond {
			left = append(left, r)
			continue
		}
		r.cancel(errMemory)
	}
	w.running = left
}

// orMax is v, and without one as much as there can be.
func orMax(v int64) int64 {
	if v == 0 {
		return 1 << 62
	}
	return v
}

// liveHeap is how many bytes were in use when the collector was last round, and how often
// it has been.
func liveHeap() (bytes int64, rounds uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64()), s[1].Value.Uint64()
}
