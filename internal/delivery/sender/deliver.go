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

// A step is the effect of an exchange with the server on a stream.
type step uint8

const (
	stepIdle      step = iota // the spool had nothing to offer
	stepAdvanced              // the server has the batch
	stepRewound               // the server expects another batch, which is offered next
	stepAbandoned             // the spool moved the stream's windows to another stream
	stepRejected              // the server refused the batch as invalid; the spool set it aside
	stepCloned                // another machine uses this identity
	stepFailed                // the exchange failed
)

// An outcome is the result of an exchange.
type outcome struct {
	step  step
	bytes int
	err   error // with stepFailed
	// local reports that err is of this machine, not of the server.
	local bool
	// reason explains stepAbandoned and stepRejected in the log.
	reason string
	// wanted are the workloads whose names the server lacks.
	wanted []workload.ShortID
}

// errOutdated is the error for a server that cannot read the waiting batches.
var errOutdated = fmt.Errorf("the server is older than this program: %w", fault.ErrUnavailable)

var errClone = fmt.Errorf("this identity is in use by another machine too: %w", fault.ErrDenied)

// deliver offers the next batch of the stream once and applies the reply.
func (s *Sender) deliver(ctx context.Context, st batch.Stream) outcome {
	o := s.exchange(ctx, st)
	s.record(o)
	return o
}

func (s *Sender) exchange(ctx context.Context, st batch.Stream) outcome {
	o, ok, err := s.spool.NextOffer(st)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return outcome{step: stepIdle} // the spool has closed the stream
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
		// An older server that replaced this one refuses formats it cannot read as invalid.
		if outdated := s.checkReadable(ctx, o.Format, true); outdated != nil {
			return outcome{step: stepFailed, err: outdated}
		}
		if serr := s.spool.Reject(st, o.Number, err.Error()); serr != nil {
			return outcome{step: stepFailed, err: serr, local: true}
		}
		return outcome{step: stepRejected, reason: err.Error()}
	case err != nil:
		s.mu.Lock()
		s.reads = wire.BaseFormat() // an older server may answer next
		s.mu.Unlock()
		return outcome{step: stepFailed, err: err}
	}
	failpoint.At("ship.sent")
	out := s.applyReply(ctx, st, r)
	out.bytes, out.wanted = len(o.Bytes), r.Names
	return out
}

// checkReadable returns nil if the server reads the format, and an error that wraps
// errOutdated if not. With again it asks the server even if its last answer suffices.
func (s *Sender) checkReadable(ctx context.Context, used wire.Format, again bool) error {
	if wire.BaseFormat().CanRead(used) {
		return nil // every server reads it
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
		return fault.WithHint(fmt.Errorf("the server reads %v, the waiting batch has %v: %w", reads, used, errOutdated), "upgrade the server; the waiting batches are sent then")
	}
	return nil
}

// request makes one request within Config.Timeout.
func (s *Sender) request(ctx context.Context, request func(context.Context) (batch.Reply, error)) (batch.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return request(ctx)
}

// checkReply checks that a reply is possible for an offer of this number: the
// spool deletes the batches that a reply acknowledges.
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
		return fmt.Errorf("impossible reply to batch %d: %v, next %d: %w", number, r.Verdict, r.Next, fault.ErrUnavailable)
	}
	return nil
}

// applyReply applies a reply to the spool and reports a loss to the server.
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
		return outcome{step: stepAbandoned, reason: "the server has other content under this number"}
	}
	return outcome{step: stepRewound}
}

// reportLoss reports batches to the server that it will not get. If the server
// refuses the report, the stream is abandoned: its windows move to another stream.
func (s *Sender) reportLoss(ctx context.Context, st batch.Stream, l batch.Loss) outcome {
	r, err := s.request(ctx, func(ctx context.Context) (batch.Reply, error) { return s.server.Lost(ctx, l) })
	why := "the server refuses the report of lost batches"
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
		return outcome{step: stepFailed, err: fmt.Errorf("impossible reply to the loss of batches %d to %d: %v, next %d: %w", l.From, l.To, r.Verdict, r.Next, fault.ErrUnavailable)}
	}
	failpoint.At("ship.lost")
	// The next offer reveals any further loss.
	if _, err := s.spool.ApplyReply(st, r); err != nil {
		return outcome{step: stepFailed, err: err, local: true}
	}
	if r.Verdict == batch.Conflict {
		return outcome{step: stepAbandoned, reason: why}
	}
	return outcome{step: stepRewound}
}

// record counts an outcome in the status.
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
