package fairqueue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A reader with many questions does not keep another from his turn, nor has he all
// the turns; and nobody's turn is lost when he goes away.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := New(4, 10)
		ctx := t.Context()
		order := make(chan string, 20)
		enter := func(ctx context.Context, who string) {
			go func() {
				if err := turns.Acquire(ctx, who); err != nil {
					order <- who + ": " + err.Error()
					return
				}
				order <- who
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
					t.Errorf("nobody is next, want %q", want)
				}
			}
		}
		for range 6 {
			enter(ctx, "many")
		}
		for range 3 {
			next("many")
		}
		next("") // three of four turns are his
		enter(ctx, "few")
		next("few")
		enter(ctx, "few")
		next("") // all turns are taken
		turns.Release("many")
		next("few") // who has the fewest, though he came last
		turns.Release("many")
		next("many")
		gone, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		enter(gone, "late")
		time.Sleep(2 * time.Second)
		next("late: context deadline exceeded")
		turns.Release("many")
		next("many")
		for range 10 {
			enter(ctx, "few")
		}
		if err := turns.Acquire(ctx, "few"); !errors.Is(err, ErrQueueFull) {
			t.Errorf("where ten wait: %v", err)
		}
		for range 20 { // all that wait get their turn, and all turns end
			turns.mu.Lock()
			who := "few"
			if turns.running["many"] > 0 {
				who = "many"
			}
			done := turns.active == 0
			turns.mu.Unlock()
			if done {
				break
			}
			turns.Release(who)
			synctest.Wait()
		}
		if turns.active != 0 || len(turns.waiters) != 0 || len(turns.running) != 0 {
			t.Errorf("%d turns go on, %d wait, %v", turns.active, len(turns.waiters), turns.running)
		}
	})
}

// A turn that is free does not depend on how long one would wait for it.
func TestFree(t *testing.T) {
	turns := New(1, 10)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // two ways that are both open would be taken by chance
		if err := turns.Acquire(ended, "one"); err != nil {
			t.Fatal(err)
		}
		if err := turns.Acquire(ended, "other"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		turns.Release("one")
	}
}
