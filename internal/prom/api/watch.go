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

// watchEvery is how often memory is looked at while there are queries.
const watchEvery = 20 * time.Millisecond

// A watch ends queries when all of them together take more memory than there is for
// them: limits count samples and series, and what else there may be shows only here.
type watch struct {
	memory int64

	mu      sync.Mutex
	running []*run // in the order in which they began
	on      bool
	// What is in memory without queries is the least that was seen in this minute and
	// the one before it.
	least, before int64
	minute        time.Time
	// Not before these many rounds of the collector is it known what ending one freed.
	rounds uint64
}

// run is a query that is computed.
type run struct {
	large  bool
	began  time.Time
	cancel context.CancelCauseFunc
}

// begin puts a query under watch. The context is ended with errMemory as its cause
// where it has to stop; end is to be called when it has.
func (w *watch) begin(ctx context.Context, large bool) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &run{large, time.Now(), cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = append(w.running, r)
	if !w.on {
		w.on = true
		now, _ := live()
		if time.Since(w.minute) > 2*time.Minute {
			w.before, w.least, w.minute = 0, now, time.Now()
		}
		w.least = min(orMost(w.least), now)
		go w.look()
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

// look watches until there are no queries.
func (w *watch) look() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for now := range tick.C {
		w.mu.Lock()
		if len(w.running) == 0 {
			w.on = false
			w.mu.Unlock()
			return
		}
		used, rounds := live()
		w.judge(used, rounds, now)
		w.mu.Unlock()
	}
}

// judge ends queries where there is too much in memory: the last of the large ones,
// and the small ones only where there is none.
func (w *watch) judge(now int64, rounds uint64, at time.Time) {
	if at.Sub(w.minute) > time.Minute {
		w.before, w.least, w.minute = w.least, now, at
	}
	w.least = min(orMost(w.least), now)
	if now-min(orMost(w.before), w.least) <= w.memory || rounds < w.rounds {
		return
	}
	w.rounds = rounds + 2
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

// orMost is v, and without one as much as there can be.
func orMost(v int64) int64 {
	if v == 0 {
		return 1 << 62
	}
	return v
}

// live is how many bytes were in use when the collector was last round, and how often
// it has been.
func live() (bytes int64, rounds uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64()), s[1].Value.Uint64()
}
