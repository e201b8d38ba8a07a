package fairqueue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A client with many requests neither blocks another client nor gets all slots, and no slot
// is lost when a waiting client gives up.
func TestAcquireOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := New(4, 10)
		ctx := t.Context()
		order := make(chan string, 20)
		enter := func(ctx context.Context, client string) {
			go func() {
				if err := queue.Acquire(ctx, client); err != nil {
					order <- client + ": " + err.Error()
					return
				}
				order <- client
			}()
			synctest.Wait()
		}
		next := func(want string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-order:
				if got != want {
					t.Errorf("%q is next, want %q", got, want)
				}
			default:
				if want != "" {
					t.Errorf("no request is next, want %q", want)
				}
			}
		}
		for range 6 {
			enter(ctx, "many")
		}
		for range 3 {
			next("many")
		}
		next("") // the limit of one client is three of four slots
		enter(ctx, "few")
		next("few")
		enter(ctx, "few")
		next("") // all slots are taken
		queue.Release("many")
		next("few") // the client with the fewest, though it came last
		queue.Release("many")
		next("many")
		gone, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		enter(gone, "late")
		time.Sleep(2 * time.Second)
		next("late: context deadline exceeded")
		queue.Release("many")
		next("many")
		for range 10 {
			enter(ctx, "few")
		}
		if err := queue.Acquire(ctx, "few"); !errors.Is(err, ErrQueueFull) {
			t.Errorf("with ten waiting: %v", err)
		}
		for range 20 { // all waiting requests get a slot and free it
			queue.mu.Lock()
			client := "few"
			if queue.running["many"] > 0 {
				client = "many"
			}
			done := queue.active == 0
			queue.mu.Unlock()
			if done {
				break
			}
			queue.Release(client)
			synctest.Wait()
		}
		if queue.active != 0 || len(queue.waiters) != 0 || len(queue.running) != 0 {
			t.Errorf("%d running, %d waiting, by client %v", queue.active, len(queue.waiters), queue.running)
		}
	})
}

// A free slot is taken even if the context has ended.
func TestAcquireFreeSlot(t *testing.T) {
	queue := New(1, 10)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // a select between two ready cases would choose at random
		if err := queue.Acquire(ended, "one"); err != nil {
			t.Fatal(err)
		}
		if err := queue.Acquire(ended, "other"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		queue.Release("one")
	}
}
