// Package fairqueue limits how many requests run at once and shares the slots fairly among
// clients.
package fairqueue

import (
	"context"
	"errors"
	"sync"
)

// ErrQueueFull is the error for a client that has too many waiting requests.
var ErrQueueFull = errors.New("too many wait")

// Queue admits requests to a fixed number of slots. The client with the fewest running
// requests goes next, and no client gets all slots if there are several.
type Queue struct {
	slots      int
	maxWaiting int // per client

	mu      sync.Mutex
	active  int            // running requests
	running map[string]int // by client
	waiters []*waiter      // in order of arrival
}

// waiter is a waiting request.
type waiter struct {
	client string
	ready  chan struct{} // closed when the request gets its slot
}

// New returns a queue with the given number of slots and of waiting requests per client.
func New(slots, waiting int) *Queue {
	return &Queue{slots: slots, maxWaiting: waiting, running: map[string]int{}}
}

// Slots returns the number of slots.
func (q *Queue) Slots() int { return q.slots }

// MaxPerReader returns how many slots one client may hold at once.
func (q *Queue) MaxPerReader() int { return max(1, q.slots*3/4) }

// Running returns the number of running requests.
func (q *Queue) Running() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.active
}

// Waiting returns the number of waiting requests.
func (q *Queue) Waiting() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(len(q.waiters))
}

// Acquire waits for a slot, which Release frees. It returns ErrQueueFull or the error of
// ctx; it takes a free slot even if ctx has ended.
func (q *Queue) Acquire(ctx context.Context, client string) error {
	q.mu.Lock()
	same := 0
	for _, w := range q.waiters {
		if w.client == client {
			same++
		}
	}
	if same >= q.maxWaiting {
		q.mu.Unlock()
		return ErrQueueFull
	}
	mine := &waiter{client, make(chan struct{})}
	q.waiters = append(q.waiters, mine)
	q.dispatch()
	q.mu.Unlock()
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
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range q.waiters {
		if w == mine {
			q.waiters = append(q.waiters[:i:i], q.waiters[i+1:]...)
			return ctx.Err()
		}
	}
	q.release(client) // the slot was assigned meanwhile
	return ctx.Err()
}

// Release frees a slot of the client.
func (q *Queue) Release(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(client)
}

func (q *Queue) release(client string) {
	q.active--
	if q.running[client]--; q.running[client] == 0 {
		delete(q.running, client)
	}
	q.dispatch()
}

// dispatch assigns the free slots to waiting requests.
func (q *Queue) dispatch() {
	for q.active < q.slots {
		best := -1
		for i, w := range q.waiters {
			if q.running[w.client] < q.MaxPerReader() && (best < 0 || q.running[w.client] < q.running[q.waiters[best].client]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		next := q.waiters[best]
		q.waiters = append(q.waiters[:best:best], q.waiters[best+1:]...)
		q.active++
		q.running[next.client]++
		close(next.ready)
	}
}
