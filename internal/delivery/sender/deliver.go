package sender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/failpoint"
)

// A step is what an exchange with the server did for a stream.
type step uint8

const (
	nothing step = iota // there was nothing to offer
	forward             // the server has one batch more
	back                // the server wants another one, which is next
	parted              // the stream was abandoned
	refused             // the batch was given up
	cloned              // the server knows this identity from elsewhere
	failed              // nothing came of it
)

// An outcome is what came of an exchange, and why nothing did.
type outcome struct {
	step  step
	bytes int
	err   error // with failed
	// own says that it was this machine that failed, and not the server.
	own bool
	// why is for people, with parted and refused.
	why string
	// wanted are names that the server lacks.
	wanted []batch.Short
}

// errOlder says that the server cannot read what waits.
var errOlder = fmt.Errorf("the server is older than this program: %w", fault.ErrUnavailable)

var errClone = fmt.Errorf("this identity is in use by another machine too: %w", fault.ErrDenied)

// deliver offers what the stream has to offer, once, and does as the server
// says.
func (s *Shipper) deliver(ctx context.Context, st batch.Stream) outcome {
	o := s.exchange(ctx, st)
	s.count(o)
	return o
}

func (s *Shipper) exchange(ctx context.Context, st batch.Stream) outcome {
	o, ok, err := s.spool.Offer(st)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return outcome{step: nothing} // it was done with, and forgotten
	case err != nil:
		return outcome{step: failed, err: err, own: true}
	case !ok:
		return outcome{step: nothing}
	}
	clock, err := s.clock()
	if err != nil {
		return outcome{step: failed, err: err, own: true}
	}
	if err := s.readable(ctx, o.Format, false); err != nil {
		return outcome{step: failed, err: err}
	}
	r, err := s.ask(ctx, func(ctx context.Context) (batch.Reply, error) { return s.server.Offer(ctx, clock, o.Bytes) })
	if err == nil {
		err = sound(o.Number, r)
	}
	switch {
	case errors.Is(err, fault.ErrInvalid):
		// A server that was replaced by an older one calls invalid what it cannot read.
		if older := s.readable(ctx, o.Format, true); older != nil {
			return outcome{step: failed, err: older}
		}
		if serr := s.spool.Refuse(st, o.Number, err.Error()); serr != nil {
			return outcome{step: failed, err: serr, own: true}
		}
		return outcome{step: refused, why: err.Error()}
	case err != nil:
		s.mu.Lock()
		s.reads = wire.First() // whoever answers next may read less
		s.mu.Unlock()
		return outcome{step: failed, err: err}
	}
	failpoint.At("ship.sent")
	out := s.settle(ctx, st, r)
	out.bytes, out.wanted = len(o.Bytes), r.Names
	return out
}

// readable reports whether the server reads a format: nil, or an error that wraps
// errOlder, or of asking it. Where the answer may be out of date it asks again.
func (s *Shipper) readable(ctx context.Context, used wire.Format, again bool) error {
	if wire.First().Reads(used) {
		return nil // so does each server
	}
	s.mu.Lock()
	known := s.reads
	s.mu.Unlock()
	if !again && known.Reads(used) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	reads, err := s.server.Reads(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.reads = reads
	s.mu.Unlock()
	if !reads.Reads(used) {
		return fault.WithHint(fmt.Errorf("it reads %v, and what waits is %v: %w", reads, used, errOlder), "upgrade the server; what waits is sent then")
	}
	return nil
}

// ask makes one request within its time.
func (s *Shipper) ask(ctx context.Context, request func(context.Context) (batch.Reply, error)) (batch.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return request(ctx)
}

// sound checks that a reply can be one to the offer of this number. The spool
// deletes what a reply says is safe, so that nonsense must not reach it.
func sound(number uint64, r batch.Reply) error {
	ok := false
	switch r.Verdict {
	case batch.Taken:
		ok = r.Next == number+1
	case batch.Known:
		ok = r.Next > number
	case batch.Behind:
		ok = 0 < r.Next && r.Next < number
	case batch.Conflict, batch.Clone:
		ok = true
	}
	if !ok {
		return fmt.Errorf("the reply to batch %d is %v, next %d: %w", number, r.Verdict, r.Next, fault.ErrUnavailable)
	}
	return nil
}

// settle does as a reply says, and tells the server what is lost.
func (s *Shipper) settle(ctx context.Context, st batch.Stream, r batch.Reply) outcome {
	if r.Verdict == batch.Clone {
		if s.cfg.Reenrol == nil {
			return outcome{step: failed, err: errClone}
		}
		return outcome{step: cloned}
	}
	lost, err := s.spool.Settle(st, r)
	switch {
	case err != nil:
		return outcome{step: failed, err: err, own: true}
	case lost != nil:
		return s.lose(ctx, st, *lost)
	}
	switch r.Verdict {
	case batch.Taken, batch.Known:
		return outcome{step: forward}
	case batch.Conflict:
		return outcome{step: parted, why: "another content stands there under the same number"}
	}
	return outcome{step: back}
}

// lose tells the server what it will not get. Where it does not take even that,
// the stream is abandoned: what waits in it goes on in another one.
func (s *Shipper) lose(ctx context.Context, st batch.Stream, l batch.Lost) outcome {
	r, err := s.ask(ctx, func(ctx context.Context) (batch.Reply, error) { return s.server.Lost(ctx, l) })
	why := "the server does not take that batches are lost"
	switch {
	case errors.Is(err, fault.ErrInvalid):
		r = batch.Reply{Verdict: batch.Conflict}
		why += ": " + err.Error()
	case err != nil:
		return outcome{step: failed, err: err}
	case r.Verdict == batch.Clone:
		return s.settle(ctx, st, r)
	case r.Verdict == batch.Conflict:
	case r.Verdict == batch.Behind && 0 < r.Next && r.Next < l.From:
	case (r.Verdict == batch.Taken || r.Verdict == batch.Known) && r.Next > l.To:
	default:
		return outcome{step: failed, err: fmt.Errorf("the reply to the loss of %d to %d is %v, next %d: %w", l.From, l.To, r.Verdict, r.Next, fault.ErrUnavailable)}
	}
	failpoint.At("ship.lost")
	// More that is lost comes up again with the next offer.
	if _, err := s.spool.Settle(st, r); err != nil {
		return outcome{step: failed, err: err, own: true}
	}
	if r.Verdict == batch.Conflict {
		return outcome{step: parted, why: why}
	}
	return outcome{step: back}
}

// count takes an outcome into the status.
func (s *Shipper) count(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o.step {
	case forward:
		s.status.LastSuccess = time.Now()
		s.status.Batches++
		s.status.Bytes += int64(o.bytes)
	case failed:
		s.status.Retries++
	case refused:
		s.status.Refused++
	case parted:
		s.status.Conflicts++
	}
	for _, n := range o.wanted {
		if len(s.wanted) < wantedLimit {
			s.wanted[n] = struct{}{}
		}
	}
}
