package sender_test

import (
	"context"
	"errors"
	"fmt"
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
	unreachable = "server unreachable; what is measured waits in the spool"
	again       = "server reached again"
	denied      = "server denies this machine; what is measured waits in the spool"
	aside       = "backlog set aside; what is new goes first"
	refusal     = "batch refused; it is set aside and counts as lost"
	abandoned   = "stream abandoned; what waits in it goes on in another"
	stuck       = "stream is stuck; it is tried again"
)

// TestPrompt checks that a window is on its way when it is in the spool.
func TestPrompt(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.run()
		b.wait(10 * time.Minute)
		b.server.once(b.spool)
		for id, late := range b.server.late {
			if late > time.Second {
				b.Errorf("window %d was %v late", id, late)
			}
		}
		b.logs(reached)
		s := b.shipper.Status()
		if s.State != sender.Connected || s.Batches != 60 || s.Bytes == 0 || s.Retries != 0 || s.Backlog != 0 || s.LastSuccess.IsZero() {
			b.Errorf("status %+v", s)
		}
	})
}

// TestOutage checks an outage of hours: the delays, that the log is short, and
// that what is new goes first afterwards.
func TestOutage(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.spool.most = 20 // 3 h are 54 batches
		b.run()
		b.wait(time.Minute)
		b.server.set(down)
		from := len(b.server.offers)
		b.wait(3 * time.Hour)
		if s := b.shipper.Status(); s.State != sender.Unreachable || s.Retries == 0 || time.Since(s.Since) < 3*time.Hour-time.Minute {
			b.Errorf("in the outage the status is %+v", s)
		}
		tries := b.server.offers[from:]
		var longest time.Duration
		for i := range len(tries) - 1 {
			d := tries[i+1].Sub(tries[i])
			longest = max(longest, d)
			if d < time.Second || d > time.Minute || i < 4 && d > time.Second<<(i+1) {
				b.Errorf("try %d came %v after the one before", i+1, d)
			}
		}
		// Their mean is half a minute.
		if n := len(tries); n < 240 || n > 500 || longest < 45*time.Second {
			b.Errorf("in 3 h %d tries, at most %v apart", n, longest)
		}
		b.server.set(nil)
		time.Sleep(time.Minute)
		before := b.spool.windows
		b.wait(10 * time.Minute)
		b.server.once(b.spool)
		for id, late := range b.server.late {
			if id > before && late > time.Second {
				b.Errorf("after the outage window %d was %v late", id, late)
			}
		}
		b.logs(reached, unreachable, again, aside)
		if b.spool.asides != 1 || b.shipper.Status().Backlog != 0 {
			b.Errorf("%d backlogs set aside, %d left", b.spool.asides, b.shipper.Status().Backlog)
		}
	})
}

// TestBacklog checks that a backlog drains no faster than it may, with one batch
// in flight, and never before what is new.
func TestBacklog(t *testing.T) {
	on(t, nil, func(b *bench) {
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
		b.server.once(b.spool)
		for id, late := range b.server.late {
			if id > first && late > time.Second {
				b.Errorf("window %d was %v late", id, late)
			}
		}
		if b.server.crowd != 2 {
			b.Errorf("%d batches were in flight at once, want one of the backlog beside the live one", b.server.crowd)
		}
		// 600 batches at 2 a second; the live stream brings one every 10 s.
		for i := range len(b.server.offers) - 23 {
			if d := b.server.offers[i+23].Sub(b.server.offers[i]); d < 10*time.Second {
				b.Fatalf("23 offers from %d on within %v", i, d)
			}
		}
		if last := b.server.offers[599+30]; last.Sub(b.server.offers[0]) > 6*time.Minute {
			b.Errorf("the backlog took %v", last.Sub(b.server.offers[0]))
		}
	})
}

// TestBacklogSlow checks that a backlog that takes long to send holds nothing
// up, and that its streams do not crowd the server.
func TestBacklogSlow(t *testing.T) {
	on(t, nil, func(b *bench) {
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
		b.server.once(b.spool)
		for id, late := range b.server.late {
			if id > first && late > time.Second {
				b.Errorf("window %d was %v late", id, late)
			}
		}
		if b.server.crowd > 2 {
			b.Errorf("%d batches were in flight at once, want one of the backlog beside the live one", b.server.crowd)
		}
	})
}

// TestSlow checks that a server that takes its time sees one batch of a stream
// at a time, and that windows that wait go together.
func TestSlow(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			time.Sleep(25 * time.Second)
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		time.Sleep(time.Minute)
		b.server.once(b.spool)
		if n := len(b.server.offers); n < 11 || n > 14 {
			b.Errorf("%d offers of 30 windows in 5 min at 25 s each", n)
		}
		b.logs(reached)
	})
}

// TestSilent checks a server that never answers: the request ends, and so does
// Run at once.
func TestSilent(t *testing.T) {
	on(t, nil, func(b *bench) {
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
		if err := b.shipper.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.server.once(b.spool)
	})
}

// TestDuplicate checks that what the server has, but whose reply was lost, is
// counted once.
func TestDuplicate(t *testing.T) {
	on(t, nil, func(b *bench) {
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
		b.server.once(b.spool)
		if b.spool.waiting() != 0 {
			b.Errorf("%d windows still wait", b.spool.waiting())
		}
	})
}

// TestGarbage checks that a reply which makes no sense changes nothing.
func TestGarbage(t *testing.T) {
	for _, r := range []batch.Reply{
		{Verdict: batch.Accepted, Next: 1}, {Verdict: batch.Accepted, Next: 3}, {Verdict: batch.Accepted}, {Verdict: batch.Duplicate, Next: 1},
		{Verdict: batch.OutOfOrder}, {Verdict: batch.OutOfOrder, Next: 1}, {Verdict: batch.OutOfOrder, Next: 9}, {Verdict: 77, Next: 2},
	} {
		on(t, nil, func(b *bench) {
			b.server.set(func(context.Context, *parcel) (batch.Reply, error) { return r, nil })
			b.run()
			b.wait(10 * time.Minute)
			b.logs(unreachable)
			if n := len(b.server.offers); n > 60 {
				b.Errorf("%d offers", n)
			}
			b.server.set(nil)
			b.wait(2 * time.Minute)
			b.server.once(b.spool)
		})
	}
}

// TestRetryAfter checks that a server which wants to be left alone is.
func TestRetryAfter(t *testing.T) {
	on(t, nil, func(b *bench) {
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
		t.Error("an error without a time has one")
	}
}

// TestRefused checks that a batch which the server calls invalid is given up,
// and that the rest goes on.
func TestRefused(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Windows[0].ID == 3 {
				return batch.Reply{}, fmt.Errorf("row 1: %w", fault.ErrInvalid)
			}
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		if len(b.server.booked) != 29 || len(b.spool.refused) != 1 || len(b.server.lost) != 1 || b.spool.waiting() != 0 {
			b.Errorf("%d booked, %d refused, %d told as lost, %d wait", len(b.server.booked), len(b.spool.refused), len(b.server.lost), b.spool.waiting())
		}
		b.logs(reached, refusal)
	})
}

// TestRefusedAll checks that a server which calls everything invalid, as a
// broken one may for a while, does not make an agent throw all away at once.
func TestRefusedAll(t *testing.T) {
	on(t, nil, func(b *bench) {
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

// TestDenied checks that being denied is said once, and heals.
func TestDenied(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{}, fmt.Errorf("certificate: %w", fault.ErrDenied)
		})
		b.run()
		b.wait(20 * time.Minute)
		b.logs(denied)
		if s := b.shipper.Status(); s.State != sender.Denied || s.Retries > 100 {
			b.Errorf("status %+v", s)
		}
		b.server.set(nil)
		b.wait(5 * time.Minute)
		b.server.once(b.spool)
		b.logs(denied, again, aside)
	})
}

// TestClone checks that another identity is got while nothing is in flight, and
// once for any number of replies that ask for it.
func TestClone(t *testing.T) {
	var b *bench
	enrolled := 0
	on(t, func(c *sender.Config) {
		c.Reenroll = func(context.Context) error {
			for st, n := range b.server.flying {
				if n > 0 {
					b.Errorf("a batch of %v is in flight", st)
				}
			}
			time.Sleep(5 * time.Second)
			for _, n := range b.server.flying {
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
			b.Errorf("enrolled %d times, want twice, the first in vain", enrolled)
		}
		b.server.once(b.spool)
		b.logs(denied, "cannot enroll anew; it is tried again", "enrolled anew", again)
	})
}

// TestCloneAlways checks that a server which says clone to everybody gets no
// flood of identities; and that there may be no way to another one.
func TestCloneAlways(t *testing.T) {
	clone := func(context.Context, *parcel) (batch.Reply, error) { return batch.Reply{Verdict: batch.Clone}, nil }
	enrolled := 0
	on(t, func(c *sender.Config) {
		c.Reenroll = func(context.Context) error { enrolled++; return nil }
	}, func(b *bench) {
		b.server.set(clone)
		b.run()
		b.wait(time.Hour)
		if enrolled < 10 || enrolled > 180 {
			b.Errorf("enrolled %d times in an hour", enrolled)
		}
	})
	on(t, nil, func(b *bench) {
		b.server.set(clone)
		b.run()
		b.wait(10 * time.Minute)
		b.logs(denied)
		b.server.set(nil)
		b.wait(2 * time.Minute)
		b.server.once(b.spool)
	})
}

// TestRestored checks a server that was put back to an earlier state: it gets
// again what is kept, and is told of the rest.
func TestRestored(t *testing.T) {
	for _, takes := range []bool{true, false} {
		on(t, nil, func(b *bench) {
			b.run()
			b.wait(5 * time.Minute) // 30 batches of a window each
			st := batch.Stream{1}
			b.server.mu.Lock()
			b.server.marks[st] = batch.Mark{Next: 11, Last: b.server.hashes[st][9]}
			b.server.hashes[st] = b.server.hashes[st][:10]
			for id := 11; id <= 30; id++ {
				delete(b.server.booked, id)
			}
			if !takes {
				b.server.onLost = func(batch.Loss) error { return fault.ErrInvalid }
			}
			b.server.mu.Unlock()
			b.spool.forget(15)
			b.wait(5 * time.Minute)
			if b.spool.waiting() != 0 {
				b.Errorf("%d windows wait", b.spool.waiting())
			}
			if !takes {
				// What was acknowledged in the stream that is abandoned stays there.
				b.logs(reached, abandoned)
				return
			}
			if len(b.server.lost) != 1 || b.server.lost[0].From != 11 || b.server.lost[0].To != 15 {
				b.Errorf("told as lost: %+v", b.server.lost)
			}
			if len(b.server.booked) != 55 {
				b.Errorf("%d of 60 windows are booked, 5 are lost", len(b.server.booked))
			}
			b.logs(reached)
		})
	}
}

// TestConflict checks that a stream which conflicts is left, and that one
// conflict after the other is slow.
func TestConflict(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.server.set(func(_ context.Context, p *parcel) (batch.Reply, error) {
			if p.Stream == (batch.Stream{1}) && p.Number == 5 {
				return batch.Reply{Verdict: batch.Conflict, Next: 5}, nil
			}
			return batch.Reply{}, nil
		})
		b.run()
		b.wait(5 * time.Minute)
		b.server.once(b.spool)
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
		b.server.once(b.spool)
	})
}

// TestStuck checks that one batch that does not get through holds up its own
// stream only, and is named.
func TestStuck(t *testing.T) {
	on(t, nil, func(b *bench) {
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

// TestSpoolFails checks that a disk that cannot be read is tried again, and said
// once.
func TestSpoolFails(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.spool.fail = errors.New("input/output error")
		b.run()
		b.wait(10 * time.Minute)
		b.logs("nothing can be sent; it is tried again")
		b.spool.mu.Lock()
		b.spool.fail = nil
		b.spool.mu.Unlock()
		b.wait(2 * time.Minute)
		b.server.once(b.spool)
	})
}

// TestWanted checks that the names that a server wants come through, once.
func TestWanted(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.server.after = func(_ *parcel, r batch.Reply) (batch.Reply, error) {
			r.Names = []workload.ShortID{7, 8}
			return r, nil
		}
		b.run()
		b.wait(time.Minute)
		got := b.shipper.Wanted()
		slices.Sort(got)
		if !slices.Equal(got, []workload.ShortID{7, 8}) {
			b.Errorf("wanted %v", got)
		}
		if got := b.shipper.Wanted(); len(got) != 0 {
			b.Errorf("wanted again %v", got)
		}
	})
}

// TestFlush checks that what waits is sent at the end, what is new first, and
// that a server that is away does not hold the end up.
func TestFlush(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.spool.backlog(100, 10)
		b.spool.add(5)
		var order []byte
		b.server.after = func(p *parcel, r batch.Reply) (batch.Reply, error) {
			order = append(order, p.Stream[0])
			return r, nil
		}
		b.server.set(down)
		if err := b.shipper.Flush(b.Context()); !errors.Is(err, fault.ErrUnavailable) || len(b.server.offers) != 1 {
			b.Errorf("Flush = %v after %d offers", err, len(b.server.offers))
		}
		b.server.set(nil)
		if err := b.shipper.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.server.once(b.spool)
		if order[0] != 2 || order[1] != 1 {
			b.Errorf("the order of streams was %v", order)
		}
		b.run()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := b.shipper.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("Flush beside Run = %v", err)
		}
	})
}

// TestConfig checks which settings are refused.
func TestConfig(t *testing.T) {
	if err := sender.Default().Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*sender.Config){
		func(c *sender.Config) { c.MinBackoff = 0 }, func(c *sender.Config) { c.MaxBackoff = time.Millisecond },
		func(c *sender.Config) { c.DrainRate = 0 }, func(c *sender.Config) { c.Timeout = -1 },
	} {
		c := sender.Default()
		change(&c)
		if err := c.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Validate(%+v) = %v", c, err)
		}
	}
}
