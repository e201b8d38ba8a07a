package api

import (
	"context"
	"errors"
	"runtime/metrics"
	"sync"
	"time"
)

// errMemory is the cause with which the memory watch cancels a query.
var errMemory = errors.New("too much memory")

// watchInterval is the interval between checks of the heap while queries run.
const watchInterval = 20 * time.Millisecond

// A memoryWatch cancels queries when all queries together take more than memory bytes. The
// other limits count samples and series only; the heap includes everything.
type memoryWatch struct {
	memory int64

	mu       sync.Mutex
	running  []*run // in the order of their start
	watching bool
	// The heap without queries is taken to be the smallest one seen in this minute and
	// the previous minute.
	thisMinute, lastMinute int64
	minute                 time.Time
	// minCycles is the number of the garbage collection at which the effect of the last
	// cancellation is known.
	minCycles uint64
}

// run is a running query.
type run struct {
	admission *admission
	large     bool // guarded by the watch
	began     time.Time
	cancel    context.CancelCauseFunc
}

// begin watches a query. The returned context is canceled with the cause errMemory if the
// query must stop; the caller calls end when the query has ended.
func (w *memoryWatch) begin(ctx context.Context, a *admission) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &run{a, a.large, time.Now(), cancel}
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

// upgrade marks the runs of a request that has become a large one.
func (w *memoryWatch) upgrade(a *admission) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.running {
		r.large = r.large || r.admission == a
	}
}

// loop checks the heap until no query runs.
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
		used, cycles := liveHeap()
		w.check(used, cycles, now)
		w.mu.Unlock()
	}
}

// check cancels queries if they take too much memory: of the large ones the one that read the
// most, the latest of equal ones, or, if there is none, all small ones older than 100 ms.
func (w *memoryWatch) check(used int64, cycles uint64, at time.Time) {
	if at.Sub(w.minute) > time.Minute {
		w.lastMinute, w.thisMinute, w.minute = w.thisMinute, used, at
	}
	w.thisMinute = min(orMax(w.thisMinute), used)
	if used-min(orMax(w.lastMinute), w.thisMinute) <= w.memory || cycles < w.minCycles {
		return
	}
	w.minCycles = cycles + 2
	largest, most := -1, int64(-1)
	for i, r := range w.running {
		if n := r.admission.read.Load(); r.large && n >= most {
			largest, most = i, n
		}
	}
	if largest >= 0 {
		w.running[largest].cancel(errMemory)
		w.running = append(w.running[:largest:largest], w.running[largest+1:]...)
		return
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

// orMax returns v, or a maximum if v is 0.
func orMax(v int64) int64 {
	if v == 0 {
		return 1 << 62
	}
	return v
}

// liveHeap returns the bytes that the last garbage collection found live, and the number of
// collections so far.
func liveHeap() (bytes int64, cycles uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64()), s[1].Value.Uint64()
}
