// Package sender brings what a spool holds to a server, in order within each
// stream and once in effect, however often it has to be sent.
//
// The live stream goes first and at once. Streams that were split off drain
// beside it, one batch at a time and no faster than a given rate, so that what
// happens now is never behind what happened then. A server that cannot be
// reached is asked again after a delay that grows, and is random, so that
// machines that lost their server together do not come back together.
package sender

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// A Server takes batches, over HTTP or in the same process. It answers within
// the deadline of the context, and soon after that has ended.
//
// An error that wraps fault.ErrInvalid says that these bytes will never be
// taken; fault.ErrDenied that this sender is not let in. After any other one the
// same is offered again later: not before the error's RetryAfter, where it has
// one.
type Server interface {
	Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error)
	Lost(ctx context.Context, l batch.Loss) (batch.Reply, error)
	// Reads asks what the server reads. Nothing else is offered to it.
	Reads(ctx context.Context) (wire.Format, error)
}

// A Spool is what a Sender uses of *spool.Spool; the contract is there.
type Spool interface {
	Streams() []spool.Status
	NextOffer(st batch.Stream) (o spool.Offer, ok bool, err error)
	ApplyReply(st batch.Stream, r batch.Reply) (lost *batch.Loss, err error)
	Reject(st batch.Stream, number uint64, detail string) error
	SplitBacklog(now time.Time) (bool, error)
	Changes() <-chan struct{}
}

// A Config says how fast to send, and how to wait.
type Config struct {
	// MinBackoff and MaxBackoff bound the delay before a batch is offered again.
	MinBackoff, MaxBackoff time.Duration
	// DrainRate is how many batches of the backlog go in a second at most.
	DrainRate float64
	// Timeout is how long the server has for one request.
	Timeout time.Duration
	// Reenroll gets this machine another identity, when the server says that
	// another machine has the present one too. It is called while nothing is in
	// flight; requests after it are made with the new one. Nil where there is
	// no way.
	Reenroll func(ctx context.Context) error
}

// Default is for a server across a network.
func Default() Config {
	return Config{MinBackoff: time.Second, MaxBackoff: time.Minute, DrainRate: 2, Timeout: 30 * time.Second}
}

// Validate checks that there is a way to go on.
func (c Config) Validate() error {
	switch {
	case c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("back-off from %v to %v: %w", c.MinBackoff, c.MaxBackoff, fault.ErrInvalid)
	case !(c.DrainRate > 0):
		return fmt.Errorf("drain of %v batches a second: %w", c.DrainRate, fault.ErrInvalid)
	case c.Timeout <= 0:
		return fmt.Errorf("time-out %v: %w", c.Timeout, fault.ErrInvalid)
	}
	return nil
}

// backoff is the delay after so many failures in a row, the last of which was
// err: anywhere between the least and a bound that doubles each time. What the
// server asks for comes on top.
func (c Config) backoff(fails int, err error) time.Duration {
	bound := c.MaxBackoff
	// Doubling it this often passes every bound.
	if d := c.MinBackoff << min(fails, 32); fails < 32 && d > 0 && d < bound {
		bound = d
	}
	d := c.MinBackoff + rand.N(bound-c.MinBackoff+1)
	if after, ok := fault.RetryAfter(err); ok {
		d += after
	}
	return d
}

// State is how it stands with the server.
type State uint8

// The states.
const (
	Unknown     State = iota // it was not asked yet
	Connected                // it answers
	Unreachable              // it does not, or not with sense
	Denied                   // it does not let this machine in
	Outdated                 // it cannot read what waits, and has to be upgraded
)

var stateNames = [...]string{"unknown", "connected", "unreachable", "denied", "older"}

// String returns the state's word, as people and metrics see it.
func (s State) String() string { return stateNames[min(int(s), len(stateNames)-1)] }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Status is how sending goes. What is counted is counted since New.
type Status struct {
	State       State     `json:"state"`
	Since       time.Time `json:"since"`        // when it came to that state
	LastSuccess time.Time `json:"last_success"` // when the server last took a batch, or had it
	Batches     int64     `json:"batches"`      // that the server has
	Bytes       int64     `json:"bytes"`        // of those
	Retries     int64     `json:"retries"`      // offers of which nothing came
	Refused     int64     `json:"refused"`      // batches that the server called invalid
	Conflicts   int64     `json:"conflicts"`    // streams that were abandoned
	Backlog     int       `json:"backlog"`      // streams beside the live one
}

// maxWanted is how many names are remembered as wanted: far more than a
// machine has workloads.
const maxWanted = 1 << 16

// A Sender sends what a spool holds.
type Sender struct {
	cfg     Config
	spool   Spool
	server  Server
	clock   func() (batch.Clock, error)
	log     *slog.Logger
	running chan struct{} // is held by Run or Flush: one batch in flight per stream

	mu     sync.Mutex // guards what follows
	status Status
	wanted map[workload.ShortID]struct{}
	reads  wire.Format // what the server was last known to read
}

// New returns a sender, which sends nothing yet. clock reads this machine's
// clocks, for each offer anew. It panics where cfg does not validate.
func New(cfg Config, s Spool, server Server, clock func() (batch.Clock, error), log *slog.Logger) *Sender {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	return &Sender{
		cfg: cfg, spool: s, server: server, clock: clock, log: log,
		running: make(chan struct{}, 1), status: Status{Since: time.Now()}, wanted: map[workload.ShortID]struct{}{}, reads: wire.BaseFormat(),
	}
}

// Wanted returns the workloads whose names the server asked for since the last
// call, in no order. They go with the next window.
func (s *Sender) Wanted() []workload.ShortID {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]workload.ShortID, 0, len(s.wanted))
	for n := range s.wanted {
		names = append(names, n)
	}
	clear(s.wanted)
	return names
}

// Status returns how sending goes.
func (s *Sender) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// updateStatus changes the status.
func (s *Sender) updateStatus(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// lock takes the turn, or fails when ctx ends first.
func (s *Sender) lock(ctx context.Context) error {
	select {
	case s.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sender) unlock() { <-s.running }

// Flush sends all that waits, as the program ends, the live stream first and
// each batch once: the first failure ends it, and is its error. It waits for Run
// to return.
func (s *Sender) Flush(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, st := range slices.Backward(s.spool.Streams()) {
		// Going back without going forward: the server is not making sense.
		for still := 0; still < maxStalls; {
			o := s.deliver(ctx, st.Stream)
			switch {
			case o.err != nil:
				return o.err
			case o.step == stepCloned:
				return errClone
			case o.step == stepAdvanced:
				still = 0
				continue
			}
			still++
			if o.step == stepIdle || o.step == stepAbandoned {
				break
			}
		}
	}
	return nil
}
