package sampler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// RequestTick takes an extra tick and returns when it is booked: the accounts then include
// everything that groups showed at the call. Any goroutine may call it while Run runs;
// before that it waits. Requests within a few milliseconds share a tick. The error wraps
// fault.ErrUnavailable if Run has ended.
func (s *Sampler) RequestTick(ctx context.Context) error { return s.request(ctx, "") }

// RequestEnd is [Sampler.RequestTick] for the end of the job with a key: the function of OnBooked
// gets the key, and its error is that of RequestEnd.
func (s *Sampler) RequestEnd(ctx context.Context, key string) error { return s.request(ctx, key) }

// A request is one for a tick.
type request struct {
	done chan<- error
	job  string // key of the job that ends; "" is none
}

func (s *Sampler) request(ctx context.Context, job string) error {
	done := make(chan error, 1)
	select {
	case s.requests <- request{done, job}:
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

// OnBooked sets a function that Run calls after each tick, and after the window that it closed, with
// the keys of the jobs whose ends were requested before it. Call it before Run.
func (s *Sampler) OnBooked(f func(ending []string) error) { s.onBooked = f }

// Run ticks until ctx ends, and once more then; call it once. It calls tick after each tick
// that was not requested, and window with each closed window, the last one shorter; either
// may be nil. The window is valid until the next one closes. When window is called the
// accounts have just been closed: it is the time for a checkpoint. A failed tick is logged,
// and the next one makes up for it; only if the very first fails Run returns the error.
func (s *Sampler) Run(ctx context.Context, tick func(), window func(*usage.Window)) (err error) {
	defer close(s.ended)
	defer func() { s.answerRequests(err) }()
	t := time.NewTicker(s.cfg.Tick)
	defer t.Stop()
	asked := time.NewTimer(0) // fires when a requested tick is due
	asked.Stop()
	failing, ours := false, true
	for {
		at := time.Now()
		s.collectRequests()
		if ours {
			_, err = s.Tick()
		} else {
			_, err = s.Sample()
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
			s.callOnBooked()
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

// collectRequests collects the waiting requests, which the current tick will answer.
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

// callOnBooked calls the function of OnBooked, and answers the requests for ends with its error.
func (s *Sampler) callOnBooked() {
	if s.onBooked == nil {
		return
	}
	err := s.onBooked(s.endingJobs(nil))
	s.waiting = slices.DeleteFunc(s.waiting, func(w request) bool {
		if w.job != "" {
			w.done <- err
		}
		return w.job != ""
	})
}

// endingJobs appends the keys of the jobs whose ends are requested.
func (s *Sampler) endingJobs(to []string) []string {
	for _, w := range s.waiting {
		if w.job != "" {
			to = append(to, w.job)
		}
	}
	return to
}

// answerRequests returns the result of the tick to all waiting requests.
func (s *Sampler) answerRequests(err error) {
	for _, w := range s.waiting {
		w.done <- err
	}
	clear(s.waiting)
	s.waiting = s.waiting[:0]
}

// finish takes a last tick and closes the open window, so that its use is not lost.
func (s *Sampler) finish(window func(*usage.Window)) error {
	if _, err := s.sample(true); err != nil {
		return err
	}
	s.CloseWindow()
	if window != nil && s.window.Length() > 0 {
		window(&s.window)
	}
	s.callOnBooked()
	return nil
}
