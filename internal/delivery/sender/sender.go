// Package sender delivers the batches of a spool to a server, in order within
// each stream. The server books each batch once, however often it is sent.
//
// The live stream is sent without delay. The backlog drains beside it, one batch
// at a time and at a limited rate, so that new windows never wait behind old ones.
// Failed offers are repeated with exponential backoff and jitter, so that agents
// which lost their server together do not all return at once.
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

// A Server accepts batches, over HTTP or in the same process. Its methods return
// soon after the context ends.
//
// An error that wraps fault.ErrInvalid means that the server will never accept
// these bytes; fault.ErrDenied, that it rejects this machine. After any other
// error the Sender repeats the offer, after the error's RetryAfter if it has one.
type Server interface {
	Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error)
	Lost(ctx context.Context, l batch.Loss) (batch.Reply, error)
	// Reads returns the format that the server reads. The Sender offers no other.
	Reads(ctx context.Context) (wire.Format, error)
}

// A Spool is the part of *spool.Spool that a Sender uses.
type Spool interface {
	Streams() []spool.Status
	NextOffer(st batch.Stream) (o spool.Offer, ok bool, err error)
	ApplyReply(st batch.Stream, r batch.Reply) (lost *batch.Loss, err error)
	Reject(st batch.Stream, number uint64, detail string) error
	SplitBacklog(now time.Time) (bool, error)
	Changes() <-chan struct{}
}

// A Config holds the rates, delays and time-outs of a Sender.
type Config struct {
	// MinBackoff and MaxBackoff bound the delay before a failed offer is repeated.
	MinBackoff, MaxBackoff time.Duration
	// DrainRate limits the backlog, in batches per second.
	DrainRate float64
	// Timeout limits one request.
	Timeout time.Duration
	// Reenroll obtains a new identity after the server reported that another
	// machine uses the current one. The Sender calls it while no request is in
	// flight; later requests must use the new identity. Nil if this machine
	// cannot re-enroll.
	Reenroll func(ctx context.Context) error
}

// Default returns the configuration for a server across a network.
func Default() Config {
	return Config{MinBackoff: time.Second, MaxBackoff: time.Minute, DrainRate: 2, Timeout: 30 * time.Second}
}

// Validate checks the configuration. Its errors wrap fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("backoff from %v to %v: %w", c.MinBackoff, c.MaxBackoff, fault.ErrInvalid)
	case !(c.DrainRate > 0):
		return fmt.Errorf("drain rate of %v batches a second: %w", c.DrainRate, fault.ErrInvalid)
	case c.Timeout <= 0:
		return fmt.Errorf("time-out %v: %w", c.Timeout, fault.ErrInvalid)
	}
	return nil
}

// backoff returns the delay after consecutive failures, the last of which was
// err: random between MinBackoff and a bound that doubles with each failure, plus
// the RetryAfter of err.
func (c Config) backoff(fails int, err error) time.Duration {
	bound := c.MaxBackoff
	// 32 doublings exceed every bound.
	if d := c.MinBackoff << min(fails, 32); fails < 32 && d > 0 && d < bound {
		bound = d
	}
	d := c.MinBackoff + rand.N(bound-c.MinBackoff+1)
	if after, ok := fault.RetryAfter(err); ok {
		d += after
	}
	return d
}

// State is the state of the connection to the server.
type State uint8

const (
	Unknown     State = iota // no request was made yet
	Connected                // the server answers
	Unreachable              // no answer, or not one of a mete server
	Denied                   // the server rejects this machine
	Outdated                 // the server cannot read the waiting batches and must be upgraded
)

var stateNames = [...]string{"unknown", "connected", "unreachable", "denied", "older"}

// String returns the state's name, as pages and metrics show it.
func (s State) String() string { return stateNames[min(int(s), len(stateNames)-1)] }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Status is the state of a Sender. It counts from New on.
type Status struct {
	State       State     `json:"state"`
	Since       time.Time `json:"since"`        // time of the last change of State
	LastSuccess time.Time `json:"last_success"` // time of the last accepted or duplicate batch
	Batches     int64     `json:"batches"`      // accepted or duplicate
	Bytes       int64     `json:"bytes"`        // size of Batches
	Retries     int64     `json:"retries"`      // failed offers
	Refused     int64     `json:"refused"`      // batches that the server refused as invalid
	Conflicts   int64     `json:"conflicts"`    // abandoned streams
	Backlog     int       `json:"backlog"`      // streams other than the live one
}

// maxWanted limits the set of workloads whose names the server wants: far more
// than a machine has workloads.
const maxWanted = 1 << 16

// A Sender sends the batches of a spool to a server.
type Sender struct {
	cfg     Config
	spool   Spool
	server  Server
	clock   func() (batch.Clock, error)
	log     *slog.Logger
	running chan struct{} // held by Run or Flush, so that each stream has one batch in flight

	mu     sync.Mutex // guards the fields below
	status Status
	wanted map[workload.ShortID]struct{}
	reads  wire.Format // format that the server read when last asked
}

// New returns a sender; Run and Flush send. The sender calls clock before each
// offer to read this machine's clocks. New panics if cfg is invalid.
func New(cfg Config, s Spool, server Server, clock func() (batch.Clock, error), log *slog.Logger) *Sender {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	return &Sender{
		cfg: cfg, spool: s, server: server, clock: clock, log: log,
		running: make(chan struct{}, 1), status: Status{Since: time.Now()}, wanted: map[workload.ShortID]struct{}{}, reads: wire.BaseFormat(),
	}
}

// Wanted returns, in no order, the workloads whose names the server has asked for
// since the last call. The next window must carry the names.
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

// Status returns the current status.
func (s *Sender) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Sender) updateStatus(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// lock waits until neither Run nor Flush is active.
func (s *Sender) lock(ctx context.Context) error {
	select {
	case s.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sender) unlock() { <-s.running }

// Flush sends all waiting batches, the live stream first, when the program ends.
// It waits for Run to return, and stops at the first failed offer with its error.
func (s *Sender) Flush(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, st := range slices.Backward(s.spool.Streams()) {
		// A server that repeatedly rewinds the stream gets no further offers.
		for stalls := 0; stalls < maxStalls; {
			o := s.deliver(ctx, st.Stream)
			switch {
			case o.err != nil:
				return o.err
			case o.step == stepCloned:
				return errClone
			case o.step == stepAdvanced:
				stalls = 0
				continue
			}
			stalls++
			if o.step == stepIdle || o.step == stepAbandoned {
				break
			}
		}
	}
	return nil
}
