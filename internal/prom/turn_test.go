package prom

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A reader with many questions does not keep another from his turn, nor has he all
// the turns; and nobody's turn is lost when he goes away.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(4, 10)
		ctx := t.Context()
		order := make(chan string, 20)
		enter := func(ctx context.Context, who string) {
			go func() {
				if err := turns.enter(ctx, who); err != nil {
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
		turns.leave("many")
		next("few") // who has the fewest, though he came last
		turns.leave("many")
		next("many")
		gone, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		enter(gone, "late")
		time.Sleep(2 * time.Second)
		next("late: context deadline exceeded")
		turns.leave("many")
		next("many")
		for range 10 {
			enter(ctx, "few")
		}
		if err := turns.enter(ctx, "few"); !errors.Is(err, errCrowd) {
			t.Errorf("where ten wait: %v", err)
		}
		for range 20 { // all that wait get their turn, and all turns end
			turns.mu.Lock()
			who := "few"
			if turns.running["many"] > 0 {
				who = "many"
			}
			done := turns.n == 0
			turns.mu.Unlock()
			if done {
				break
			}
			turns.leave(who)
			synctest.Wait()
		}
		if turns.n != 0 || len(turns.queue) != 0 || len(turns.running) != 0 {
			t.Errorf("%d turns go on, %d wait, %v", turns.n, len(turns.queue), turns.running)
		}
	})
}

// The last of the large queries is ended first, and another one only when it is known
// what that freed; the small ones only where there is no large one.
func TestWatch(t *testing.T) {
	w := &watch{memory: 100, least: 1000, minute: time.Unix(1e9, 0)}
	at := time.Unix(1e9+1, 0)
	ctxs := make([]context.Context, 4)
	for i, large := range []bool{false, true, true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ctxs[i] = ctx
		w.running = append(w.running, &run{large, at.Add(-time.Second), cancel})
	}
	check := func(used int64, rounds uint64, want string) {
		t.Helper()
		w.judge(used, rounds, at)
		var got strings.Builder
		for _, ctx := range ctxs {
			if errors.Is(context.Cause(ctx), errMemory) {
				got.WriteString("x")
			} else {
				got.WriteString("-")
			}
		}
		if got.String() != want {
			t.Errorf("%d in use after %d rounds: %s, want %s", used, rounds, got.String(), want)
		}
	}
	check(1100, 1, "----")
	check(1101, 1, "--x-")
	check(1200, 2, "--x-")
	check(1200, 3, "-xx-")
	check(1050, 4, "-xx-")
	check(1200, 5, "xxxx")
	// What stays is not the queries'.
	at = at.Add(2 * time.Minute)
	w.judge(2000, 9, at)
	at = at.Add(2 * time.Minute)
	ctx, cancel := context.WithCancelCause(t.Context())
	w.running = []*run{{true, at, cancel}}
	if w.judge(2100, 20, at); ctx.Err() != nil {
		t.Error("a query is ended for what was there before it")
	}
}
