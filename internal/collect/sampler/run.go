package sampler

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// RequestTick takes a tick now, beside those that the clock brings, and returns when it
// is booked: what groups show as it is called is in the accounts then. Any
// goroutine may call it while Run runs; it waits where Run has not begun. Who
// asks within a few milliseconds of another shares a tick with it. The error
// wraps fault.ErrUnavailable where Run has ended.
func (s *Sampler) RequestTick(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.requests <- done:
	case <-s.ended:
		return fmt.Errorf("tick: the sampler has ended: %w", fault.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run ticks until ctx ends, once more then; it is called once. After each tick
// that was not asked for it calls tick, and at the end of each window, the last
// one shorter, window with the closed one, which is good until the next one is
// closed; either may be nil. As window is called the accounts are just closed: it
// is the time for a checkpoint of them. A tick that fails is logged and made up
// for by the next; only where the very first fails Run gives up.
func (s *Sampler) Run(ctx context.Context, tick func(), window func(*usage.Window)) (err error) {
	defer close(s.ended)
	defer func() { s.answerRequests(err) }()
	t := time.NewTicker(s.cfg.Tick)
	defer t.Stop()
	asked := time.NewTimer(0) // when who asked gets a tick
	asked.Stop()
	failing, ours := false, true
	for {
		at := time.Now()
		s.collectRequests()
		if ours {
			_, err = s.Tick()
		} else {
			_, _, err = s.sample()
		}
		switch {
		case err == nil:
			failing = false
			if ours && tick != nil {
				tick()
			}
			if s.closed && window != nil {
				window(&s.window)
			}
		case !s.started:
			return err
		case !failing:
			failing = true
			s.log.Warn("tick failed; the next one makes up for it", "err", err)
		}
		s.answerRequests(err)
		for next := false; !next; {
			select {
			case <-ctx.Done():
				return s.finish(window)
			case <-t.C:
				ours, next = true, true
			case <-asked.C:
				ours, next = false, true
			case w := <-s.requests:
				if s.waiting = append(s.waiting, w); len(s.waiting) == 1 {
					asked.Reset(minRequestGap - time.Since(at))
				}
			}
		}
		asked.Stop()
	}
}

// collectRequests takes in who asks at this moment, so that the tick at hand is theirs.
func (s *Sampler) collectRequests() {
	for {
		select {
		case w := <-s.requests:
			s.waiting = append(s.waiting, w)
		default:
			return
		}
	}
}

// answerRequests tells who waits for a tick that it was taken, or why not.
func (s *Sampler) answerRequests(err error) {
	for _, w := range s.waiting {
		w <- err
	}
	clear(s.waiting)
	s.waiting = s.waiting[:0]
}

// finish takes a last tick and closes the open window, so that what was used in
// it is not lost with the program.
func (s *Sampler) finish(window func(*usage.Window)) error {
	if _, err := s.Tick(); err != nil {
		return err
	}
	if !s.closed {
		s.accounts.CloseWindow(&s.window)
		s.ticks, s.closed = 1, true
	}
	if window != nil && s.window.Length() > 0 {
		window(&s.window)
	}
	return nil
}
