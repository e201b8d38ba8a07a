package sender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/failpoint"
)

// A step is what an exchange with the server did for a stream.
type step uint8

const (
	stepIdle      step = iota // there was nothing to offer
	stepAdvanced              // the server has one batch more
	stepRewound               // the server wants another one, which is next
	stepAbandoned             // the stream was abandoned
	stepRejected              // the batch was given up
	stepCloned                // the server knows this identity from elsewhere
	stepFailed                // nothing came of it
)

// An outcome is what came of an exchange, and why nothing did.
type outcome struct {
	step  step
	bytes int
	err   error // with failed
	// local says that it was this machine that failed, and not the server.
	local bool
	// reason is for people, with stepAbandoned and stepRejected.
	reason string
	// wanted are names that the server lacks.
	wanted []workload.ShortID
}

// errOutdated says that the server cannot read what waits.
var errOutdated = fmt.Errorf("the server is older than this program: %w", fault.ErrUnavailable)

var errClone = fmt.Errorf("this identity is in use by another machine too: %w", fault.ErrDenied)

// deliver offers what the stream has to offer, once, and does as the server
// says.
func (s *Sender) deliver(ctx context.Context, st batch.Stream) outcome {
	o := s.exchange(ctx, st)
	s.record(o)
	return o
}

func (s *Sender) exchange(ctx context.Context, st batch.Stream) outcome {
	o, ok, err := s.spool.NextOffer(st)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return outcome{step: stepIdle} // it was done with, and forgotten
	case err != nil:
		return outcome{step: stepFailed, err: err, local: true}
	case !ok:
		return outcome{step: stepIdle}
	}
	clock, err := s.clock()
	if err != nil {
		return outcome{step: stepFailed, err: err, local: true}
	}
	if err := s.checkReadable(ctx, o.Format, false); err != nil {
		return outcome{step: stepFailed, err: err}
	}
	r, err := s.request(ctx, func(ctx context.Context) (batch.Reply, error) { return s.server.Offer(ctx, clock, o.Bytes) })
	if err == nil {
		err = checkReply(o.Number, r)
	}
	switch {
	case errors.Is(err, fault.ErrInvalid):
		// A server that was replaced by an older one calls invalid what it cannot read.
		if older := s.checkReadable(ctx, o.Format, true); older != nil {
			return outcome{step: stepFailed, err: older}
		}
		if serr := s.spool.Reject(st, o.Number, err.Error()); serr != nil {
			return outcome{step: stepFailed, err: serr, local: true}
		}
		return outcome{step: stepRejected, reason: err.Error()}
	case err != nil:
		s.mu.Lock()
		s.reads = wire.BaseFormat() // whoever answers next may read less
		s.mu.Unlock()
		return outcome{step: stepFailed, err: err}
	}
	failpoint.At("ship.sent")
	out := s.applyReply(ctx, st, r)
	out.bytes, out.wanted = len(o.Bytes), r.Names
	return out
}

// checkReadable reports whether the server reads a format: nil, or an error that wraps
// errOutdated, or of asking it. Where the answer may be out of date it asks again.
func (s *Sender) checkReadable(ctx context.Context, used wire.Format, again bool) error {
	if wire.BaseFormat().CanRead(used) {
		return nil // so does each server
	}
	s.mu.Lock()
	known := s.reads
	s.mu.Unlock()
	if !again && known.CanRead(used) {
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
	if !reads.CanRead(used) {
		return fault.WithHint(fmt.Errorf("it reads %v, and what waits is %v: %w", reads, used, errOutdated), "upgrade the server; what waits is sent then")
	}
	return nil
}

// request makes one request within its time.
func (s *Sender) request(ctx context.Context, request func(context.Context) (batch.Reply, error)) (batch.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return request(ctx)
}

// checkReply checks that a reply can be one to the offer of this number. The spool
// deletes what a reply says is safe, so that nonsense must not reach it.
func checkReply(number uint64, r batch.Reply) error {
	ok := false
	switch r.Verdict {
	case batch.Accepted:
		ok = r.Next == number+1
	case batch.Duplicate:
		ok = r.Next > number
	case batch.OutOfOrder:
		ok = 0 < r.Next && r.Next < number
	case batch.Conflict, batch.Clone:
		ok = true
	}
	if !ok {
		return fmt.Errorf("the reply to batch %d is %v, next %d: %w", number, r.Verdict, r.Next, fault.ErrUnavailable)
	}
	return nil
}

// applyReply does as a reply says, and tells the server what is lost.
func (s *Sender) applyReply(ctx context.Context, st batch.Stream, r batch.Reply) outcome {
	if r.Verdict == batch.Clone {
		if s.cfg.Reenroll == nil {
			return outcome{step: stepFailed, err: errClone}
		}
		return outcome{step: stepCloned}
	}
	lost, err := s.spool.ApplyReply(st, r)
	switch {
	case err != nil:
		return outcome{step: stepFailed, err: err, local: true}
	case lost != nil:
		return s.reportLoss(ctx, st, *lost)
	}
	switch r.Verdict {
	case batch.Accepted, batch.Duplicate:
		return outcome{step: stepAdvanced}
	case batch.Conflict:
		return outcome{step: stepAbandoned, reason: "another content stands there under the same number"}
	}
	return outcome{step: stepRewound}
}

// reportLoss tells the server what it will not get. Where it does not take even that,
// the stream is abandoned: what waits in it goes on in another one.
func (s *Sender) reportLoss(ctx context.Context, st batch.Stream, l batch.Loss) outcome {
	r, err := s.request(ctx, func(ctx context.Context) (batch.Reply, error) { return s.server.Lost(ctx, l) })
	why := "the server does not take that batches are lost"
	switch {
	case errors.Is(err, fault.ErrInvalid):
		r = batch.Reply{Verdict: batch.Conflict}
		why += ": " + err.Error()
	case err != nil:
		return outcome{step: stepFailed, err: err}
	case r.Verdict == batch.Clone:
		return s.applyReply(ctx, st, r)
	case r.Verdict == batch.Conflict:
	case r.Verdict == batch.OutOfOrder && 0 < r.Next && r.Next < l.From:
	case (r.Verdict == batch.Accepted || r.Verdict == batch.Duplicate) && r.Next > l.To:
	default:
		return outcome{step: stepFailed, err: fmt.Errorf("the reply to the loss of %d to %d is %v, next %d: %w", l.From, l.To, r.Verdict, r.Next, fault.ErrUnavailable)}
	}
	failpoint.At("ship.lost")
	// More that is lost comes up again with the next offer.
	if _, err := s.spool.ApplyReply(st, r); err != nil {
		return outcome{step: stepFailed, err: err, local: true}
	}
	if r.Verdict == batch.Conflict {
		return outcome{step: stepAbandoned, reason: why}
	}
	return outcome{step: stepRewound}
}

// record takes an outcome into the status.
func (s *Sender) record(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o.step {
	case stepAdvanced:
		s.status.LastSuccess = time.Now()
		s.status.Batches++
		s.status.Bytes += int64(o.bytes)
	case stepFailed:
		s.status.Retries++
	case stepRejected:
		s.status.Refused++
	case stepAbandoned:
		s.status.Conflicts++
	}
	for _, n := range o.wanted {
		if len(s.wanted) < maxWanted {
			s.wanted[n] = struct{}{}
		}
	}
}
