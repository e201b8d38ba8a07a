package sender_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// lockedRand is a random source for several goroutines.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *lockedRand) one(in int) bool { return d.n(in) == 0 }

func (d *lockedRand) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// TestChaos injects every fault of a network and a server, and checks that each
// window is booked exactly once in the end.
func TestChaos(t *testing.T) {
	for seed := range uint64(30) {
		d := &lockedRand{r: rand.New(rand.NewPCG(seed, 0))}
		withBench(t, func(c *sender.Config) {
			c.Reenroll = func(context.Context) error { return nil }
		}, func(b *bench) {
			misbehave := func(ctx context.Context, p *parcel) (batch.Reply, error) {
				select {
				case <-time.After(time.Duration(d.n(3000)) * time.Millisecond):
				case <-ctx.Done():
					return batch.Reply{}, ctx.Err()
				}
				switch d.n(12) {
				case 0:
					return batch.Reply{}, fault.ErrUnavailable
				case 1:
					return batch.Reply{}, &fault.RetryError{Err: fault.ErrUnavailable, After: time.Duration(d.n(30)) * time.Second}
				case 2:
					return batch.Reply{}, fault.ErrDenied
				case 3:
					<-ctx.Done()
					return batch.Reply{}, ctx.Err()
				case 4:
					if v := batch.Verdict(d.n(8)); v != batch.Conflict || b.server.needs(p) {
						return batch.Reply{Verdict: v}, nil
					}
				case 5:
					return batch.Reply{Verdict: batch.Clone}, nil
				}
				return batch.Reply{}, nil
			}
			b.server.before = misbehave
			b.server.after = func(_ *parcel, r batch.Reply) (batch.Reply, error) {
				if d.one(6) {
					return batch.Reply{}, errors.New("connection reset")
				}
				return r, nil
			}
			b.spool.maxWindows = 1 + d.n(5)
			for range 6 {
				b.run()
				b.wait(time.Duration(d.n(10)) * time.Minute)
				if d.one(2) {
					b.server.set(down)
					b.wait(time.Duration(d.n(30)) * time.Minute)
					b.server.set(misbehave)
				}
				if d.one(2) && len(b.spool.streams) > 1 {
					b.spool.add(1)
				}
				b.end()
				if d.one(2) {
					_ = b.sender.Flush(b.Context())
				}
			}
			b.server.set(nil)
			b.server.after = nil
			b.run()
			b.wait(30 * time.Minute)
			b.server.checkBookedOnce(b.spool)
			if b.spool.pending() != 0 {
				b.Errorf("%d windows are undelivered", b.spool.pending())
			}
			if b.Failed() {
				b.Fatalf("seed %d: logged %q", seed, b.log.lines())
			}
		})
	}
}
