package sender

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

const (
	// maxStalls is how many steps in a row may bring nothing forward before
	// delays begin. Two are ordinary: a batch is refused, then said to be lost.
	maxStalls = 3
	// pollInterval is after how long the spool is looked at without a reason.
	pollInterval = time.Minute
	// recentReply is for how long an answer to one stream says that the server is
	// there: longer than the longest window.
	recentReply = 2 * time.Minute
)

// A streamState is one stream on its way. At most one of its batches is in flight.
type streamState struct {
	stream      batch.Stream
	live        bool
	inFlight    bool      // a batch is in flight
	draining    bool      // and it went as one of the backlog
	idle        bool      // it had nothing to offer
	woken       bool      // something may have come since it was asked
	failures    int       // in a row
	stalls      int       // steps in a row that brought nothing forward
	nextAttempt time.Time // not before
	lastAttempt time.Time // when it was last asked
	server      State     // of the server, from here
	lastReply   time.Time // when it last answered
}

// A loop is what Run holds; only its goroutine touches it.
type loop struct {
	*Sender
	streams   map[batch.Stream]*streamState
	done      chan result
	exchanges sync.WaitGroup
	inFlight  int       // batches in flight
	draining  bool      // one of them is of the backlog
	nextDrain time.Time // when the next of the backlog may go

	// Where a stream is abandoned, the one that takes its place goes on with
	// its delays: else a server that conflicts with everything would be asked
	// without end.
	successorFailures int
	successorAttempt  time.Time

	cloned    bool // another identity is needed
	enrolling bool
	clones    int // without success between them
	enrolled  chan error
	enrollDue time.Time
}

type result struct {
	stream *streamState
	outcome
}

// Run sends what comes into the spool until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return nil
	}
	defer s.unlock()
	// A goroutine that ends after ctx has nobody to tell.
	l := &loop{Sender: s, streams: map[batch.Stream]*streamState{}, done: make(chan result), enrolled: make(chan error)}
	defer l.exchanges.Wait()
	for {
		t := time.NewTimer(l.dispatch(ctx))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-s.spool.Changes():
			for _, a := range l.streams {
				a.idle, a.woken = false, true
			}
		case r := <-l.done:
			if ctx.Err() == nil { // else it failed for that reason
				l.handleResult(r)
			}
		case err := <-l.enrolled:
			l.enroll(err)
		case <-t.C:
			for _, a := range l.streams {
				a.idle = a.idle && time.Since(a.lastAttempt) < pollInterval
			}
		}
		t.Stop()
	}
}

// dispatch starts what may start, and returns for how long nothing more may.
func (l *loop) dispatch(ctx context.Context) time.Duration {
	now := time.Now()
	if l.cloned {
		return l.reenroll(ctx, now)
	}
	streams := l.spool.Streams()
	l.syncStreams(streams)
	wait := pollInterval
	var next *streamState // of the backlog
	for _, st := range streams {
		a := l.streams[st.Stream]
		switch {
		case a.inFlight || a.idle:
		case a.nextAttempt.After(now):
			wait = min(wait, a.nextAttempt.Sub(now))
		case a.live:
			l.start(ctx, a, now)
		case next == nil || a.lastAttempt.Before(next.lastAttempt):
			next = a
		}
	}
	switch {
	case next == nil || l.draining:
	case l.nextDrain.After(now):
		wait = min(wait, l.nextDrain.Sub(now))
	default:
		next.draining, l.draining = true, true
		l.nextDrain = now.Add(time.Duration(float64(time.Second) / l.cfg.DrainRate))
		l.start(ctx, next, now)
	}
	return wait
}

// syncStreams follows which streams are open, and forgets those that are not.
func (l *loop) syncStreams(streams []spool.Status) {
	for _, a := range l.streams {
		open := slices.ContainsFunc(streams, func(st spool.Status) bool { return st.Stream == a.stream })
		if !open && !a.inFlight {
			delete(l.streams, a.stream)
		}
	}
	for _, st := range streams {
		a := l.streams[st.Stream]
		if a == nil {
			a = &streamState{stream: st.Stream, failures: l.successorFailures, nextAttempt: l.successorAttempt}
			l.successorFailures, l.successorAttempt = 0, time.Time{}
			l.streams[st.Stream] = a
		}
		a.live = st.Live
	}
	l.updateStatus(func(s *Status) { s.Backlog = max(len(streams)-1, 0) })
}

// start offers the next batch of a stream.
func (l *loop) start(ctx context.Context, a *streamState, now time.Time) {
	a.inFlight, a.woken, a.lastAttempt = true, false, now
	l.inFlight++
	l.exchanges.Go(func() {
		r := result{a, l.deliver(ctx, a.stream)}
		select {
		case l.done <- r:
		case <-ctx.Done():
		}
	})
}

// handleResult takes the result of an offer.
func (l *loop) handleResult(r result) {
	a, now := r.stream, time.Now()
	a.inFlight = false
	l.inFlight--
	if a.draining {
		a.draining, l.draining = false, false
	}
	switch r.step {
	case stepIdle:
		a.idle = !a.woken
		return
	case stepFailed:
		l.handleFailure(r, now)
		return
	case stepCloned:
		l.handleClone(now)
		return
	}
	if !l.cloned {
		a.server, a.lastReply = Connected, now
		l.setServerState(Connected, nil, now)
	}
	switch r.step {
	case stepAdvanced:
		a.failures, a.stalls = 0, 0
		if !l.cloned {
			l.clones = 0
		}
		return
	case stepRejected:
		l.log.Warn("batch refused; it is set aside and counts as lost", "stream", a.stream, "err", r.reason)
		a.failures++
	case stepAbandoned:
		l.log.Warn("stream abandoned; what waits in it goes on in another", "stream", a.stream, "err", r.reason)
		a.failures++
		l.successorFailures, l.successorAttempt = a.failures, now.Add(l.cfg.backoff(a.failures, nil))
		for _, o := range l.streams {
			o.idle = false
		}
	}
	if a.stalls++; a.stalls >= maxStalls {
		a.failures = max(a.failures, a.stalls-maxStalls+1)
		a.nextAttempt = now.Add(l.cfg.backoff(a.failures, nil))
	}
}

// handleFailure puts a stream off.
func (l *loop) handleFailure(r result, now time.Time) {
	a := r.stream
	a.failures++
	a.nextAttempt = now.Add(l.cfg.backoff(a.failures, r.err))
	if r.local {
		if a.failures == 1 {
			l.log.Warn("nothing can be sent; it is tried again", "stream", a.stream, "err", r.err)
		}
		return
	}
	a.server = stateFromError(r.err)
	for _, o := range l.streams {
		if o.server == Connected && now.Sub(o.lastReply) < recentReply {
			// It answers elsewhere, so it is this batch that does not get through.
			if a.failures == maxStalls {
				l.log.Warn("stream is stuck; it is tried again", "stream", a.stream, "err", r.err)
			}
			return
		}
	}
	l.setServerState(a.server, r.err, now)
}

func stateFromError(err error) State {
	switch {
	case errors.Is(err, fault.ErrDenied):
		return Denied
	case errors.Is(err, errOutdated):
		return Outdated
	}
	return Unreachable
}

// setServerState says how it stands with the server, once each time that it changes.
func (l *loop) setServerState(s State, err error, now time.Time) {
	before := l.Status()
	if before.State == s {
		return
	}
	l.updateStatus(func(st *Status) { st.State, st.Since = s, now })
	switch s {
	case Unreachable:
		l.log.Warn("server unreachable; what is measured waits in the spool", "err", err)
		return
	case Outdated:
		l.log.Error("server older than this program; what is measured waits in the spool", "err", err, "hint", fault.Hint(err))
		return
	case Denied:
		l.log.Error("server denies this machine; what is measured waits in the spool", "err", err, "hint", fault.Hint(err))
		return
	}
	if before.State == Unknown {
		l.log.Info("server reached")
	} else {
		l.log.Info("server reached again", "took", now.Sub(before.Since).Round(time.Second))
	}
	// The others need not wait for the end of their delays.
	for _, a := range l.streams {
		if a.server != Connected {
			a.nextAttempt = time.Time{}
		}
	}
	aside, err := l.spool.SplitBacklog(now)
	switch {
	case err != nil:
		l.log.Warn("the backlog cannot be set aside: what is new waits behind it", "err", err)
	case aside:
		l.log.Info("backlog set aside; what is new goes first")
	}
}

// handleClone makes the streams stop for another identity.
func (l *loop) handleClone(now time.Time) {
	if l.cloned {
		return // it was in flight with the one that said so
	}
	l.cloned, l.enrollDue = true, now
	if l.clones++; l.clones > 1 {
		l.enrollDue = now.Add(l.cfg.backoff(l.clones-1, nil))
	}
	for _, a := range l.streams {
		a.server = Denied
	}
	l.setServerState(Denied, errClone, now)
}

// reenroll gets another identity once nothing is in flight that was sent with the
// old one.
func (l *loop) reenroll(ctx context.Context, now time.Time) time.Duration {
	switch {
	case l.inFlight > 0 || l.enrolling:
		return pollInterval
	case l.enrollDue.After(now):
		return l.enrollDue.Sub(now)
	}
	l.enrolling = true
	l.exchanges.Go(func() {
		err := l.cfg.Reenroll(ctx)
		select {
		case l.enrolled <- err:
		case <-ctx.Done():
		}
	})
	return pollInterval
}

// enroll takes the result of reenroll.
func (l *loop) enroll(err error) {
	l.enrolling = false
	if err == nil {
		l.cloned = false
		l.log.Info("enrolled anew")
		return
	}
	if l.clones == 1 {
		l.log.Warn("cannot enroll anew; it is tried again", "err", err)
	}
	l.enrollDue = time.Now().Add(l.cfg.backoff(l.clones, err))
	l.clones++
}
