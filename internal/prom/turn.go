package prom

import (
	"context"
	"sync"
)

// turns lets some queries run at once, and the others wait: whoever has the fewest
// that run is next. One reader alone never has all the turns, where there are several.
type turns struct {
	slots   int
	waiting int // of one reader, at most

	mu      sync.Mutex
	n       int            // that run
	running map[string]int // by reader
	queue   []*turn        // in order of arrival
}

// turn is a query that waits.
type turn struct {
	who   string
	ready chan struct{} // closed when it is its turn
}

func newTurns(slots, waiting int) *turns {
	return &turns{slots: slots, waiting: waiting, running: map[string]int{}}
}

// most is how many turns one reader has at once.
func (t *turns) most() int { return max(1, t.slots*3/4) }

// waits is how many wait.
func (t *turns) waits() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.queue))
}

// enter waits for a turn, which leave ends. Its error is that of ctx, or errCrowd.
func (t *turns) enter(ctx context.Context, who string) error {
	t.mu.Lock()
	same := 0
	for _, q := range t.queue {
		if q.who == who {
			same++
		}
	}
	if same >= t.waiting {
		t.mu.Unlock()
		return errCrowd
	}
	mine := &turn{who, make(chan struct{})}
	t.queue = append(t.queue, mine)
	t.next()
	t.mu.Unlock()
	select {
	case <-mine.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, q := range t.queue {
		if q == mine {
			t.queue = append(t.queue[:i:i], t.queue[i+1:]...)
			return ctx.Err()
		}
	}
	t.end(who) // its turn came just now
	return ctx.Err()
}

// leave ends a turn.
func (t *turns) leave(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(who)
}

func (t *turns) end(who string) {
	t.n--
	if t.running[who]--; t.running[who] == 0 {
		delete(t.running, who)
	}
	t.next()
}

// next gives turns to those who wait.
func (t *turns) next() {
	for t.n < t.slots {
		best := -1
		for i, q := range t.queue {
			if t.running[q.who] < t.most() && (best < 0 || t.running[q.who] < t.running[t.queue[best].who]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		q := t.queue[best]
		t.queue = append(t.queue[:best:best], t.queue[best+1:]...)
		t.n++
		t.running[q.who]++
		close(q.ready)
	}
}
