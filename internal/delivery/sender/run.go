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
	// maxStalls is the number of consecutive steps without progress before backoff
	// starts. Two are normal: a batch is refused, then reported lost.
	maxStalls = 3
	// pollInterval is the interval of checking the spool without a notification.
	pollInterval = time.Minute
	// recentReply is how long a reply to one stream proves that the server is
	// reachable: longer than the longest window.
	recentReply = 2 * time.Minute
)

// A streamState is the delivery state of one stream. At most one of its batches is in flight.
type streamState struct {
	stream      batch.Stream
	live        bool
	inFlight    bool      // a batch is in flight
	draining    bool      // the batch in flight counts toward the drain rate
	idle        bool      // the spool had nothing to offer
	woken       bool      // the spool changed during the attempt
	failures    int       // consecutive
	stalls      int       // consecutive steps without progress
	nextAttempt time.Time // earliest time of the next attempt
	lastAttempt time.Time // start of the last attempt
	server      State     // of the server, as this stream saw it
	lastReply   time.Time // time of the last reply
}

// A loop is the state of Run; only Run's goroutine accesses it.
type loop struct {
	*Sender
	streams   map[batch.Stream]*streamState
	done      chan result
	exchanges sync.WaitGroup
	inFlight  int       // batches in flight
	draining  bool      // one batch in flight is of the backlog
	hints     []string  // of the errors that were logged in the server's present state
	nextDrain time.Time // earliest time of the next backlog batch

	// The successor of an abandoned stream inherits its backoff; otherwise a
	// server that answers every batch with conflict would get offers without delay.
	successorFailures int
	successorAttempt  time.Time

	cloned    bool // this machine needs a new identity
	enrolling bool
	clones    int // clone replies and failed enrollments since the last success
	enrolled  chan error
	enrollDue time.Time
}

type result struct {
	stream *streamState
	outcome
}

// Run sends the batches of the spool until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return nil
	}
	defer s.unlock()
	// Goroutines that finish after ctx has ended discard their results.
	l := &loop{Sender: s, streams: map[batch.Stream]*streamState{}, done: make(chan result), enrolled: make(chan error)}
	defer l.exchanges.Wait()
	for {
		due := time.After(l.dispatch(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-s.spool.Changes():
			for _, a := range l.streams {
				a.idle, a.woken = false, true
			}
		case r := <-l.done:
			if ctx.Err() == nil { // otherwise the failure is the cancellation
				l.handleResult(r)
			}
		case err := <-l.enrolled:
			l.handleEnrolled(err)
		case <-due:
			for _, a := range l.streams {
				a.idle = a.idle && time.Since(a.lastAttempt) < pollInterval
			}
		}
	}
}

// dispatch starts all attempts that are due, and returns the time until the next one.
func (l *loop) dispatch(ctx context.Context) time.Duration {
	now := time.Now()
	if l.cloned {
		return l.reenroll(ctx, now)
	}
	streams := l.spool.Streams()
	l.syncStreams(streams)
	wait := pollInterval
	var next *streamState // the backlog stream that waited longest
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

// syncStreams adds the streams that the spool opened and removes those it closed.
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

// start offers the next batch of a stream in a goroutine.
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

// handleResult processes the result of an offer.
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
		l.log.Warn("server refused a batch; it is kept in quarantine and reported lost", "stream", a.stream, "err", r.reason)
		a.failures++
	case stepAbandoned:
		l.log.Warn("stream abandoned; its windows move to another stream", "stream", a.stream, "err", r.reason)
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

// handleFailure schedules the next attempt of a stream.
func (l *loop) handleFailure(r result, now time.Time) {
	a := r.stream
	a.failures++
	a.nextAttempt = now.Add(l.cfg.backoff(a.failures, r.err))
	if r.local {
		if a.failures == 1 {
			l.log.Warn("cannot offer a batch; retrying", "stream", a.stream, "err", r.err)
		}
		return
	}
	a.server = stateFromError(r.err)
	for _, o := range l.streams {
		if o.server == Connected && now.Sub(o.lastReply) < recentReply {
			// The server answers other streams, so only this batch fails.
			if a.failures == maxStalls {
				l.log.Warn("stream is stuck; retrying", "stream", a.stream, "err", r.err)
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

// setServerState records the server's state and logs each change once, and in a state each error with
// another hint: the error of the first attempt may tell less than that of a later one. Errors themselves
// differ at each attempt, for example by a port.
func (l *loop) setServerState(s State, err error, now time.Time) {
	before := l.Status()
	hint := fault.Hint(err)
	if before.State == s {
		if hint != "" && !slices.Contains(l.hints, hint) {
			l.hints = append(l.hints, hint)
			l.log.Warn("server takes no windows for another reason; they wait in the spool", fault.Attrs(err)...)
		}
		return
	}
	l.hints = []string{hint}
	l.updateStatus(func(st *Status) { st.State, st.Since = s, now })
	switch s {
	case Unreachable:
		l.log.Warn("server unreachable; windows wait in the spool", fault.Attrs(err)...)
		return
	case Outdated:
		l.log.Error("server older than this program; windows wait in the spool", fault.Attrs(err)...)
		return
	case Denied:
		l.log.Error("server denies this machine; windows wait in the spool", fault.Attrs(err)...)
		return
	}
	if before.State == Unknown {
		l.log.Info("server reached")
	} else {
		l.log.Info("server reached again", "took", now.Sub(before.Since).Round(time.Second))
	}
	// End the backoff of the other streams.
	for _, a := range l.streams {
		if a.server != Connected {
			a.nextAttempt = time.Time{}
		}
	}
	splitOff, err := l.spool.SplitBacklog(now)
	switch {
	case err != nil:
		l.log.Warn("cannot split off the backlog; new windows wait behind it", "err", err)
	case splitOff:
		l.log.Info("backlog split off; new windows go first")
	}
}

// handleClone stops all streams until the machine has a new identity.
func (l *loop) handleClone(now time.Time) {
	if l.cloned {
		return // another batch in flight got the same reply
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

// reenroll starts Config.Reenroll when no batch of the old identity is in flight, and
// returns the time until it should be called again.
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

// handleEnrolled processes the result of Config.Reenroll.
func (l *loop) handleEnrolled(err error) {
	l.enrolling = false
	if err == nil {
		l.cloned = false
		l.log.Info("enrolled again")
		return
	}
	if l.clones == 1 {
		l.log.Warn("cannot enroll again; retrying", "err", err)
	}
	l.enrollDue = time.Now().Add(l.cfg.backoff(l.clones, err))
	l.clones++
}
