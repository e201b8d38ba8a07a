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
	// patience is how many steps in a row may bring nothing forward before
	// delays begin. Two are ordinary: a batch is refused, then said to be lost.
	patience = 3
	// glance is after how long the spool is looked at without a reason.
	glance = time.Minute
	// recent is for how long an answer to one stream says that the server is
	// there: longer than the longest window.
	recent = 2 * time.Minute
)

// A lane is one stream on its way. At most one of its batches is in flight.
type lane struct {
	stream   batch.Stream
	live     bool
	busy     bool      // a batch is in flight
	draining bool      // and it went as one of the backlog
	idle     bool      // it had nothing to offer
	woken    bool      // something may have come since it was asked
	fails    int       // in a row
	still    int       // steps in a row that brought nothing forward
	due      time.Time // not before
	served   time.Time // when it was last asked
	reach    State     // of the server, from here
	met      time.Time // when it last answered
}

// A loop is what Run holds; only its goroutine touches it.
type loop struct {
	*Shipper
	lanes    map[batch.Stream]*lane
	done     chan result
	flying   sync.WaitGroup
	busy     int       // batches in flight
	draining bool      // one of them is of the backlog
	drained  time.Time // when the next of the backlog may go

	// Where a stream is abandoned, the one that takes its place goes on with
	// its delays: else a server that conflicts with everything would be asked
	// without end.
	heirFails int
	heirDue   time.Time

	cloned    bool // another identity is needed
	enrolling bool
	clones    int // without success between them
	enrolled  chan error
	enrolDue  time.Time
}

type result struct {
	lane *lane
	outcome
}

// Run sends what comes into the spool until ctx ends.
func (s *Shipper) Run(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return nil
	}
	defer s.unlock()
	// A goroutine that ends after ctx has nobody to tell.
	l := &loop{Shipper: s, lanes: map[batch.Stream]*lane{}, done: make(chan result), enrolled: make(chan error)}
	defer l.flying.Wait()
	for {
		t := time.NewTimer(l.dispatch(ctx))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-s.spool.Changed():
			for _, a := range l.lanes {
				a.idle, a.woken = false, true
			}
		case r := <-l.done:
			if ctx.Err() == nil { // else it failed for that reason
				l.land(r)
			}
		case err := <-l.enrolled:
			l.enrol(err)
		case <-t.C:
			for _, a := range l.lanes {
				a.idle = a.idle && time.Since(a.served) < glance
			}
		}
		t.Stop()
	}
}

// dispatch starts what may start, and returns for how long nothing more may.
func (l *loop) dispatch(ctx context.Context) time.Duration {
	now := time.Now()
	if l.cloned {
		return l.reenrol(ctx, now)
	}
	streams := l.spool.Streams()
	l.meet(streams)
	wait := glance
	var next *lane // of the backlog
	for _, st := range streams {
		a := l.lanes[st.Stream]
		switch {
		case a.busy || a.idle:
		case a.due.After(now):
			wait = min(wait, a.due.Sub(now))
		case a.live:
			l.start(ctx, a, now)
		case next == nil || a.served.Before(next.served):
			next = a
		}
	}
	switch {
	case next == nil || l.draining:
	case l.drained.After(now):
		wait = min(wait, l.drained.Sub(now))
	default:
		next.draining, l.draining = true, true
		l.drained = now.Add(time.Duration(float64(time.Second) / l.cfg.Drain))
		l.start(ctx, next, now)
	}
	return wait
}

// meet makes lanes of the streams that are open, and forgets those that are not.
func (l *loop) meet(streams []spool.Status) {
	for _, a := range l.lanes {
		open := slices.ContainsFunc(streams, func(st spool.Status) bool { return st.Stream == a.stream })
		if !open && !a.busy {
			delete(l.lanes, a.stream)
		}
	}
	for _, st := range streams {
		a := l.lanes[st.Stream]
		if a == nil {
			a = &lane{stream: st.Stream, fails: l.heirFails, due: l.heirDue}
			l.heirFails, l.heirDue = 0, time.Time{}
			l.lanes[st.Stream] = a
		}
		a.live = st.Live
	}
	l.note(func(s *Status) { s.Backlog = max(len(streams)-1, 0) })
}

// start offers the next batch of a lane.
func (l *loop) start(ctx context.Context, a *lane, now time.Time) {
	a.busy, a.woken, a.served = true, false, now
	l.busy++
	l.flying.Go(func() {
		r := result{a, l.deliver(ctx, a.stream)}
		select {
		case l.done <- r:
		case <-ctx.Done():
		}
	})
}

// land takes the result of an offer.
func (l *loop) land(r result) {
	a, now := r.lane, time.Now()
	a.busy = false
	l.busy--
	if a.draining {
		a.draining, l.draining = false, false
	}
	switch r.step {
	case nothing:
		a.idle = !a.woken
		return
	case failed:
		l.fail(r, now)
		return
	case cloned:
		l.clone(now)
		return
	}
	if !l.cloned {
		a.reach, a.met = Connected, now
		l.reach(Connected, nil, now)
	}
	switch r.step {
	case forward:
		a.fails, a.still = 0, 0
		if !l.cloned {
			l.clones = 0
		}
		return
	case refused:
		l.log.Warn("batch refused; it is set aside and counts as lost", "stream", a.stream, "err", r.why)
		a.fails++
	case parted:
		l.log.Warn("stream abandoned; what waits in it goes on in another", "stream", a.stream, "err", r.why)
		a.fails++
		l.heirFails, l.heirDue = a.fails, now.Add(l.cfg.backoff(a.fails, nil))
		for _, o := range l.lanes {
			o.idle = false
		}
	}
	if a.still++; a.still >= patience {
		a.fails = max(a.fails, a.still-patience+1)
		a.due = now.Add(l.cfg.backoff(a.fails, nil))
	}
}

// fail puts a lane off.
func (l *loop) fail(r result, now time.Time) {
	a := r.lane
	a.fails++
	a.due = now.Add(l.cfg.backoff(a.fails, r.err))
	if r.own {
		if a.fails == 1 {
			l.log.Warn("nothing can be sent; it is tried again", "stream", a.stream, "err", r.err)
		}
		return
	}
	a.reach = stateOf(r.err)
	for _, o := range l.lanes {
		if o.reach == Connected && now.Sub(o.met) < recent {
			// It answers elsewhere, so it is this batch that does not get through.
			if a.fails == patience {
				l.log.Warn("stream is stuck; it is tried again", "stream", a.stream, "err", r.err)
			}
			return
		}
	}
	l.reach(a.reach, r.err, now)
}

func stateOf(err error) State {
	switch {
	case errors.Is(err, fault.ErrDenied):
		return Denied
	case errors.Is(err, errOlder):
		return Older
	}
	return Unreachable
}

// reach says how it stands with the server, once each time that it changes.
func (l *loop) reach(s State, err error, now time.Time) {
	before := l.Status()
	if before.State == s {
		return
	}
	l.note(func(st *Status) { st.State, st.Since = s, now })
	switch s {
	case Unreachable:
		l.log.Warn("server unreachable; what is measured waits in the spool", "err", err)
		return
	case Older:
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
	for _, a := range l.lanes {
		if a.reach != Connected {
			a.due = time.Time{}
		}
	}
	aside, err := l.spool.SetAside(now)
	switch {
	case err != nil:
		l.log.Warn("the backlog cannot be set aside: what is new waits behind it", "err", err)
	case aside:
		l.log.Info("backlog set aside; what is new goes first")
	}
}

// clone makes the lanes stop for another identity.
func (l *loop) clone(now time.Time) {
	if l.cloned {
		return // it was in flight with the one that said so
	}
	l.cloned, l.enrolDue = true, now
	if l.clones++; l.clones > 1 {
		l.enrolDue = now.Add(l.cfg.backoff(l.clones-1, nil))
	}
	for _, a := range l.lanes {
		a.reach = Denied
	}
	l.reach(Denied, errClone, now)
}

// reenrol gets another identity once nothing is in flight that was sent with the
// old one.
func (l *loop) reenrol(ctx context.Context, now time.Time) time.Duration {
	switch {
	case l.busy > 0 || l.enrolling:
		return glance
	case l.enrolDue.After(now):
		return l.enrolDue.Sub(now)
	}
	l.enrolling = true
	l.flying.Go(func() {
		err := l.cfg.Reenrol(ctx)
		select {
		case l.enrolled <- err:
		case <-ctx.Done():
		}
	})
	return glance
}

// enrol takes the result of reenrol.
func (l *loop) enrol(err error) {
	l.enrolling = false
	if err == nil {
		l.cloned = false
		l.log.Info("enrolled anew")
		return
	}
	if l.clones == 1 {
		l.log.Warn("cannot enrol anew; it is tried again", "err", err)
	}
	l.enrolDue = time.Now().Add(l.cfg.backoff(l.clones, err))
	l.clones++
}
