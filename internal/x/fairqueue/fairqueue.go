// Package fairqueue lets some questions be answered at once, and the others wait.
package fairqueue

import (
	"context"
	"errors"
	"sync"
)

// ErrQueueFull is the error of who has too many questions that wait.
var ErrQueueFull = errors.New("too many wait")

// Queue are those of questions: whoever has the fewest that run is next. One reader
// alone never has all the turns, where there are several.
type Queue struct {
	slots      int
	maxWaiting int // of one reader, at most

	mu      sync.Mutex
	active  int            // that run
	running map[string]int // by reader
	waiters []*waiter      // in order of arrival
}

// waiter is a question that waits.
type waiter struct {
	who   string
	ready chan struct{} // closed when it is its turn
}

// New lets so many run at once, and as many of one reader wait.
func New(slots, waiting int) *Queue {
	return &Queue{slots: slots, maxWaiting: waiting, running: map[string]int{}}
}

// Slots is how many run at once.
func (t *Queue) Slots() int { return t.slots }

// MaxPerReader is how many turns one reader has at once.
func (t *Queue) MaxPerReader() int { return max(1, t.slots*3/4) }

// Running is how many run.
func (t *Queue) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active
}

// Waiting is how many wait.
func (t *Queue) Waiting() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.waiters))
}

// Acquire waits for a turn, which Release ends. Its error is that of ctx, or ErrQueueFull; a turn
// that is free is taken also where ctx has ended.
func (t *Queue) Acquire(ctx context.Context, who string) error {
	t.mu.Lock()
	same := 0
	for _, q := range t.waiters {
		if q.who == who {
			same++
		}
	}
	if same >= t.maxWaiting {
		t.mu.Unlock()
		return ErrQueueFull
	}
	mine := &waiter{who, make(chan struct{})}
	t.waiters = append(t.waiters, mine)
	t.dispatch()
	t.mu.Unlock()
	select {
	case <-mine.ready:
		return nil
	default:
	}
	select {
	case <-mine.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, q := range t.waiters {
		if q == mine {
			t.waiters = append(t.waiters[:i:i], t.waiters[i+1:]...)
			return ctx.Err()
		}
	}
	t.release(who) // its turn came just now
	return ctx.Err()
}

// Release ends a turn.
func (t *Queue) Release(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(who)
}

func (t *Queue) release(who string) {
	t.active--
	if t.running[who]--; t.running[who] == 0 {
		delete(t.running, who)
	}
	t.dispatch()
}

// dispatch gives turns to those who wait.
func (t *Queue) dispatch() {
	for t.active < t.slots {
		best := -1
		for i, q := range t.waiters {
			if t.running[q.who] < t.MaxPerReader() && (best < 0 || t.running[q.who] < t.running[t.waiters[best].who]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		q := t.waiters[best]
		t.waiters = append(t.waiters[:best:best], t.waiters[best+1:]...)
		t.active++
		t.running[q.who]++
		close(q.ready)
	}
}
