package sender_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

const (
	reached     = "server reached"
	unreachable = "server unreachable; windows wait in the spool"
	again       = "server reached again"
	denied      = "server denies this machine; windows wait in the spool"
	splitOff    = "backlog split off; new windows go first"
	refusal     = "server refused a batch; it is kept in quarantine and reported lost"
	abandoned   = "stream abandoned; its windows move to another stream"
	stuck       = "stream is stuck; retrying"
)

// TestPrompt checks that a window is sent as soon as it is in the spool.
func TestPrompt(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.run()
		b.wait(10 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		for id, delay := range b.server.delay {
			if delay > time.Second {
				b.Errorf("window %d was %v late", id, delay)
			}
		}
		b.logs(reached)
		s := b.sender.Status()
		if s.State != sender.Connected || s.Batches != 60 || s.Bytes == 0 || s.Retries != 0 || s.Backlog != 0 || s.LastSuccess.IsZero() {
			b.Errorf("status %+v", s)
		}
	})
}

// TestOutage checks an outage of hours: the backoff, a short log, and new windows
// before the backlog afterwards.
func TestOutage(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.maxWindows = 20 // 3 h are 54 batches
		b.run()
		b.wait(time.Minute)
		b.server.set(down)
		from := len(b.server.offers)
		b.wait(3 * time.Hour)
		if s := b.sender.Status(); s.State != sender.Unreachable || s.Retries == 0 || time.Since(s.Since) < 3*time.Hour-time.Minute {
			b.Errorf("status during the outage: %+v", s)
		}
		tries := b.server.offers[from:]
		var longest time.Duration
		for i := range len(tries) - 1 {
			d := tries[i+1].Sub(tries[i])
			longest = max(longest, d)
			if d < time.Second || d > time.Minute || i < 4 && d > time.Second<<(i+1) {
				b.Errorf("try %d came %v after the previous one", i+1, d)
			}
		}
		// The mean delay is half a minute.
		if n := len(tries); n < 240 || n > 500 || longest < 45*time.Second {
			b.Errorf("in 3 h %d tries, at most %v apart", n, longest)
		}
		b.server.set(nil)
		time.Sleep(time.Minute)
		before := b.spool.windows
		b.wait(10 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		for id, delay := range b.server.delay {
			if id > before && delay > time.Second {
				b.Errorf("after the outage window %d was %v late", id, delay)
			}
		}
		b.logs(reached, unreachable, again, splitOff)
		if b.spool.splits != 1 || b.sender.Status().Backlog != 0 {
			b.Errorf("%d backlogs set aside, %d left", b.spool.splits, b.sender.Status().Backlog)
		}
	})
}

// TestBacklog checks that a backlog keeps to its drain rate, with one batch in
// flight, and does not delay new windows.
func TestBacklog(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		for range 3 {
			b.spool.backlog(2000, 10)
		}
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			time.Sleep(200 * time.Millisecond)
			return batch.Reply{}, nil
		})
		first := b.spool.windows
		b.run()
		b.wait(10 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		for id, delay := range b.server.delay {
			if id > first && delay > time.Second {
				b.Errorf("window %d was %v late", id, delay)
			}
		}
		if b.server.maxInFlight != 2 {
			b.Errorf("%d batches were in flight at once, want at most one live and one of the backlog", b.server.maxInFlight)
		}
		// 600 batches at 2 a second; the live stream adds one every 10 s.
		for i := range len(b.server.offers) - 23 {
			if d := b.server.offers[i+23].Sub(b.server.offers[i]); d < 10*time.Second {
				b.Fatalf("23 offers after offer %d within %v", i, d)
			}
		}
		if last := b.server.offers[599+30]; last.Sub(b.server.offers[0]) > 6*time.Minute {
			b.Errorf("the backlog took %v", last.Sub(b.server.offers[0]))
		}
	})
}

// TestBacklogSlow checks that slow batches of the backlog delay no new windows, and
// that the backlog streams have one batch in flight together.
func TestBacklogSlow(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		for range 3 {
			b.spool.backlog(50, 10)
		}
		first := b.spool.windows
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Windows[0].ID <= first {
				time.Sleep(8 * time.Second)
			}
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		for id, delay := range b.server.delay {
			if id > first && delay > time.Second {
				b.Errorf("window %d was %v late", id, delay)
			}
		}
		if b.server.maxInFlight > 2 {
			b.Errorf("%d batches were in flight at once, want at most one live and one of the backlog", b.server.maxInFlight)
		}
	})
}

// TestSlow checks that a slow server gets one batch of a stream at a time, and that
// waiting windows share a batch.
func TestSlow(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			time.Sleep(25 * time.Second)
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		time.Sleep(time.Minute)
		b.server.checkBookedOnce(b.spool)
		if n := len(b.server.offers); n < 11 || n > 14 {
			b.Errorf("%d offers of 30 windows in 5 min at 25 s each", n)
		}
		b.logs(reached)
	})
}

// TestSilent checks a server that never answers: requests time out, and Run ends at
// once.
func TestSilent(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(ctx context.Context, _ *parcel) (batch.Reply, error) {
			<-ctx.Done()
			return batch.Reply{}, ctx.Err()
		})
		b.run()
		b.wait(2 * time.Minute)
		b.logs(unreachable)
		if n := len(b.server.offers); n < 2 || n > 4 {
			b.Errorf("%d offers in 2 min with a time-out of 30 s", n)
		}
		b.end()
		b.logs(unreachable)
		b.server.set(nil)
		if err := b.sender.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.server.checkBookedOnce(b.spool)
	})
}

// TestDuplicate checks that a batch whose reply was lost is booked once.
func TestDuplicate(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		n := 0
		b.server.after = func(_ *parcel, r batch.Reply) (batch.Reply, error) {
			if n++; n%3 != 0 {
				return batch.Reply{}, errors.New("connection reset")
			}
			return r, nil
		}
		b.run()
		b.wait(5 * time.Minute)
		time.Sleep(time.Minute)
		b.server.checkBookedOnce(b.spool)
		if b.spool.pending() != 0 {
			b.Errorf("%d windows are undelivered", b.spool.pending())
		}
	})
}

// TestGarbage checks that an impossible reply changes nothing.
func TestGarbage(t *testing.T) {
	for _, r := range []batch.Reply{
		{Verdict: batch.Accepted, Next: 1}, {Verdict: batch.Accepted, Next: 3}, {Verdict: batch.Accepted}, {Verdict: batch.Duplicate, Next: 1},
		{Verdict: batch.OutOfOrder}, {Verdict: batch.OutOfOrder, Next: 1}, {Verdict: batch.OutOfOrder, Next: 9}, {Verdict: 77, Next: 2},
	} {
		withBench(t, nil, func(b *bench) {
			b.server.set(func(context.Context, *parcel) (batch.Reply, error) { return r, nil })
			b.run()
			b.wait(10 * time.Minute)
			b.logs(unreachable)
			if n := len(b.server.offers); n > 60 {
				b.Errorf("%d offers", n)
			}
			b.server.set(nil)
			b.wait(2 * time.Minute)
			b.server.checkBookedOnce(b.spool)
		})
	}
}

// TestRetryAfter checks that the sender waits for the time that the server asks for.
func TestRetryAfter(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{}, fmt.Errorf("too many: %w", &fault.RetryError{Err: fault.ErrUnavailable, After: 5 * time.Minute})
		})
		b.run()
		b.wait(time.Hour)
		for i := range len(b.server.offers) - 1 {
			if d := b.server.offers[i+1].Sub(b.server.offers[i]); d < 5*time.Minute || d > 6*time.Minute {
				b.Errorf("try %d came after %v", i+1, d)
			}
		}
	})
	if _, ok := fault.RetryAfter(fault.ErrUnavailable); ok {
		t.Error("RetryAfter of a plain error")
	}
}

// TestRefused checks that a batch that the server refuses as invalid is set aside and
// the others are delivered.
func TestRefused(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Windows[0].ID == 3 {
				return batch.Reply{}, fmt.Errorf("row 1: %w", fault.ErrInvalid)
			}
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		if len(b.server.booked) != 29 || len(b.spool.rejected) != 1 || len(b.server.lost) != 1 || b.spool.pending() != 0 {
			b.Errorf("%d booked, %d refused, %d losses reported, %d undelivered", len(b.server.booked), len(b.spool.rejected), len(b.server.lost), b.spool.pending())
		}
		b.logs(reached, refusal)
	})
}

// TestRefusedAll checks that backoff limits the damage by a defective server that
// refuses every batch as invalid.
func TestRefusedAll(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.backlog(10000, 10)
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) { return batch.Reply{}, fault.ErrInvalid })
		b.run()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(b.server.offers); n > 60 || n < 10 {
			b.Errorf("%d batches refused in 10 min", n)
		}
	})
}

// TestDenied checks that a denial is logged once and that delivery resumes after it.
func TestDenied(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{}, fmt.Errorf("certificate: %w", fault.ErrDenied)
		})
		b.run()
		b.wait(20 * time.Minute)
		b.logs(denied)
		if s := b.sender.Status(); s.State != sender.Denied || s.Retries > 100 {
			b.Errorf("status %+v", s)
		}
		b.server.set(nil)
		b.wait(5 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		b.logs(denied, again, splitOff)
	})
}

// TestClone checks that the sender re-enrolls while nothing is in flight, and once
// for any number of clone replies.
func TestClone(t *testing.T) {
	var b *bench
	enrolled := 0
	withBench(t, func(c *sender.Config) {
		c.Reenroll = func(context.Context) error {
			for st, n := range b.server.inFlight {
				if n > 0 {
					b.Errorf("a batch of %v is in flight", st)
				}
			}
			time.Sleep(5 * time.Second)
			for _, n := range b.server.inFlight {
				if n > 0 {
					b.Error("a batch was sent while enrolling")
				}
			}
			if enrolled++; enrolled == 1 {
				return fault.ErrUnavailable
			}
			b.server.set(nil)
			return nil
		}
	}, func(bb *bench) {
		b = bb
		b.spool.backlog(100, 10)
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			time.Sleep(3 * time.Second)
			return batch.Reply{Verdict: batch.Clone}, nil
		})
		b.run()
		b.wait(2 * time.Minute)
		if enrolled != 2 {
			b.Errorf("enrolled %d times, want twice, the first without success", enrolled)
		}
		b.server.checkBookedOnce(b.spool)
		b.logs(denied, "cannot enroll again; retrying", "enrolled again", again)
	})
}

// TestCloneAlways checks that backoff limits the enrollments with a server that
// always replies clone, and a sender without Reenroll.
func TestCloneAlways(t *testing.T) {
	clone := func(context.Context, *parcel) (batch.Reply, error) { return batch.Reply{Verdict: batch.Clone}, nil }
	enrolled := 0
	withBench(t, func(c *sender.Config) {
		c.Reenroll = func(context.Context) error { enrolled++; return nil }
	}, func(b *bench) {
		b.server.set(clone)
		b.run()
		b.wait(time.Hour)
		if enrolled < 10 || enrolled > 180 {
			b.Errorf("enrolled %d times in an hour", enrolled)
		}
	})
	withBench(t, nil, func(b *bench) {
		b.server.set(clone)
		b.run()
		b.wait(10 * time.Minute)
		b.logs(denied)
		b.server.set(nil)
		b.wait(2 * time.Minute)
		b.server.checkBookedOnce(b.spool)
	})
}

// TestRestored checks a server that was restored from a backup: it gets the kept
// batches again and a report of the deleted ones.
func TestRestored(t *testing.T) {
	for _, acceptsLoss := range []bool{true, false} {
		withBench(t, nil, func(b *bench) {
			b.run()
			b.wait(5 * time.Minute) // 30 batches of a window each
			st := batch.Stream{1}
			b.server.mu.Lock()
			b.server.marks[st] = batch.Mark{Next: 11, Last: b.server.hashes[st][9]}
			b.server.hashes[st] = b.server.hashes[st][:10]
			for id := 11; id <= 30; id++ {
				delete(b.server.booked, id)
			}
			if !acceptsLoss {
				b.server.onLost = func(batch.Loss) error { return fault.ErrInvalid }
			}
			b.server.mu.Unlock()
			b.spool.forget(15)
			b.wait(5 * time.Minute)
			if b.spool.pending() != 0 {
				b.Errorf("%d windows are undelivered", b.spool.pending())
			}
			if !acceptsLoss {
				// The acknowledged windows of the abandoned stream are not sent again.
				b.logs(reached, abandoned)
				return
			}
			if len(b.server.lost) != 1 || b.server.lost[0].From != 11 || b.server.lost[0].To != 15 {
				b.Errorf("losses reported: %+v", b.server.lost)
			}
			if len(b.server.booked) != 55 {
				b.Errorf("%d of 60 windows are booked, want 55", len(b.server.booked))
			}
			b.logs(reached)
		})
	}
}

// TestConflict checks that the sender abandons a conflicting stream, and that backoff
// limits repeated conflicts.
func TestConflict(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Stream == (batch.Stream{1}) && p.Number == 5 {
				return batch.Reply{Verdict: batch.Conflict, Next: 5}, nil
			}
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		b.logs(reached, abandoned)
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{Verdict: batch.Conflict, Next: 1}, nil
		})
		b.wait(10 * time.Minute)
		if b.spool.opened > 60 {
			b.Errorf("%d streams in 10 min of conflicts", b.spool.opened)
		}
		b.server.set(nil)
		b.wait(2 * time.Minute)
		b.server.checkBookedOnce(b.spool)
	})
}

// TestStuck checks that a batch that always fails delays only its own stream, and is
// logged.
func TestStuck(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.backlog(100, 10)
		first := b.spool.windows
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Stream == (batch.Stream{1}) {
				return batch.Reply{}, errors.New("status 500")
			}
			return batch.Reply{}, nil
		})
		b.spool.add(1)
		b.run()
		b.wait(10 * time.Minute)
		if n := len(b.server.booked); n != b.spool.windows-first {
			b.Errorf("%d of %d live windows are booked", n, b.spool.windows-first)
		}
		if lines := b.log.lines(); !slices.Contains(lines, stuck) || len(lines) > 4 {
			b.Errorf("logged %q", lines)
		}
	})
}

// TestSpoolFails checks that reading a failing disk is retried and logged once.
func TestSpoolFails(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.fail = errors.New("input/output error")
		b.run()
		b.wait(10 * time.Minute)
		b.logs("cannot offer a batch; retrying")
		b.spool.mu.Lock()
		b.spool.fail = nil
		b.spool.mu.Unlock()
		b.wait(2 * time.Minute)
		b.server.checkBookedOnce(b.spool)
	})
}

// TestWanted checks that Wanted returns the names that the server wants once.
func TestWanted(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.server.after = func(_ *parcel, r batch.Reply) (batch.Reply, error) {
			r.Names = []workload.ShortID{7, 8}
			return r, nil
		}
		b.run()
		b.wait(time.Minute)
		got := b.sender.Wanted()
		slices.Sort(got)
		if !slices.Equal(got, []workload.ShortID{7, 8}) {
			b.Errorf("wanted %v", got)
		}
		if got := b.sender.Wanted(); len(got) != 0 {
			b.Errorf("second call: wanted %v", got)
		}
	})
}

// TestFlush checks that Flush sends the waiting batches, the live stream first, and
// stops at once if the server is unreachable.
func TestFlush(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.backlog(100, 10)
		b.spool.add(5)
		var order []byte
		b.server.after = func(p *parcel, r batch.Reply) (batch.Reply, error) {
			order = append(order, p.Stream[0])
			return r, nil
		}
		b.server.set(down)
		if err := b.sender.Flush(b.Context()); !errors.Is(err, fault.ErrUnavailable) || len(b.server.offers) != 1 {
			b.Errorf("Flush = %v after %d offers", err, len(b.server.offers))
		}
		b.server.set(nil)
		if err := b.sender.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.server.checkBookedOnce(b.spool)
		if order[0] != 2 || order[1] != 1 {
			b.Errorf("the order of streams was %v", order)
		}
		b.run()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := b.sender.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("Flush beside Run = %v", err)
		}
	})
}

// TestPolls checks that a stream without windows is looked at each minute, and that windows that come
// without a notification are sent then.
func TestPolls(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.run()
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if n := b.spool.asked; n != 11 {
			b.Errorf("%d calls of NextOffer in 10 minutes, want 11", n)
		}
		b.spool.mu.Lock()
		b.spool.windows++
		b.spool.streams[0].pending = append(b.spool.streams[0].pending, window{1, time.Now()})
		b.spool.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		b.server.checkBookedOnce(b.spool)
	})
}

// TestRunWaits checks that Run returns when the last request has ended.
func TestRunWaits(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		ended := false
		b.server.set(func(ctx context.Context, _ *parcel) (batch.Reply, error) {
			<-ctx.Done()
			time.Sleep(time.Second / 2)
			ended = true
			return batch.Reply{}, ctx.Err()
		})
		b.run()
		b.spool.add(1)
		synctest.Wait()
		if b.end(); !ended {
			b.Error("Run returned while a request was open")
		}
	})
}

// TestRunTwice checks that a second Run waits for the first one, until its context ends.
func TestRunTwice(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.run()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := b.sender.Run(ctx); err != nil || time.Since(start) != time.Minute {
			b.Errorf("a second Run ended after %v: %v", time.Since(start), err)
		}
	})
}

// TestClockFails checks that offers wait while this machine's clock cannot be read, which says nothing
// about the server.
func TestClockFails(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		broken := errors.New("no clock")
		b.sender = sender.New(sender.Default(), b.spool, b.server, func() (batch.Clock, error) { return batch.Clock{Boot: "boot"}, broken }, slog.New(slog.NewJSONHandler(b.log, nil)))
		b.run()
		b.wait(5 * time.Minute)
		if s := b.sender.Status(); s.State != sender.Unknown || s.Retries == 0 || len(b.server.offers) > 0 {
			b.Errorf("%d offers, status %+v", len(b.server.offers), s)
		}
		broken = nil
		b.wait(2 * time.Minute)
		b.server.checkBookedOnce(b.spool)
	})
}
