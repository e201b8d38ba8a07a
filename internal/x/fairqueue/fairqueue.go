// Package fairqueue lets some questions be answered at once, and the others wait.
package fairqueue

import (
	"context"
	"errors"
	"sync"
)

// ErrCrowd is the error of who has too many questions that wait.
var ErrCrowd = errors.New("too many wait")

// Queue are those of questions: whoever has the fewest that run is next. One reader
// alone never has all the turns, where there are several.
type Queue struct {
	slots   int
	waiting int // of one reader, at most

	mu      sync.Mutex
	n       int            // that run
	running map[string]int // by reader
	queue   []*turn        // in order of arrival
}

// turn is a question that waits.
type turn struct {
	who   string
	ready chan struct{} // closed when it is its turn
}

// New lets so many run at once, and as many of one reader wait.
func New(slots, waiting int) *Queue {
	return &Queue{slots: slots, waiting: waiting, running: map[string]int{}}
}

// Slots is how many run at once.
func (t *Queue) Slots() int { return t.slots }

// Most is how many turns one reader has at once.
func (t *Queue) Most() int { return max(1, t.slots*3/4) }

// Running is how many run.
func (t *Queue) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// Waits is how many wait.
func (t *Queue) Waits() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.queue))
}

// Enter waits for a turn, which Leave ends. Its error is that of ctx, or ErrCrowd; a turn
// that is free is taken also where ctx has ended.
func (t *Queue) Enter(ctx context.Context, who string) error {
	t.mu.Lock()
	same := 0
	for _, q := range t.queue {
		if q.who == who {
			same++
		}
	}
	if same >= t.waiting {
		t.mu.Unlock()
		return ErrCrowd
	}
	mine := &turn{who, make(chan struct{})}
	t.queue = append(t.queue, mine)
	t.next()
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
	for i, q := range t.queue {
		if q == mine {
			t.queue = append(t.queue[:i:i], t.queue[i+1:]...)
			return ctx.Err()
		}
	}
	t.end(who) // its turn came just now
	return ctx.Err()
}

// Leave ends a turn.
func (t *Queue) Leave(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(who)
}

func (t *Queue) end(who string) {
	t.n--
	if t.running[who]--; t.running[who] == 0 {
		delete(t.running, who)
	}
	t.next()
}

// next gives turns to those who wait.
func (t *Queue) next() {
	for t.n < t.slots {
		best := -1
		for i, q := range t.queue {
			if t.running[q.who] < t.Most() && (best < 0 || t.running[q.who] < t.running[t.queue[best].who]) {
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
