package enroll

import (
	"context"
	"math/rand/v2"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/sleep"
)

// How long Run waits after a renewal that failed: from the one to the other,
// twice as long each time.
const (
	minWait = time.Minute
	maxWait = time.Hour
)

// clockInterval is how often Run looks at the clock: its own timers stand still while
// the machine sleeps.
const clockInterval = time.Hour

// Run keeps the identity good until ctx ends: it renews the certificate after
// two thirds of its life, somewhat earlier on some machines than on others, and
// enrolls anew where it has ended and there is a token. It returns ctx's error.
func (i *Identity) Run(ctx context.Context) error {
	if i.local {
		<-ctx.Done()
		return ctx.Err()
	}
	var last time.Time // of a success; zero is none in this run
	for failures := 0; ; {
		if failures == 0 && !i.isDue(time.Now(), last) {
			if err := sleep.For(ctx, min(clockInterval, i.untilDue(last))); err != nil {
				return err
			}
			continue
		}
		err := i.refresh(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			last, failures = time.Now(), 0
			continue
		}
		wait := backoff(failures, err)
		failures++
		if ends := i.Expiry(); time.Now().Add(maxWait).After(ends) {
			i.log.Error("certificate not renewed, and it ends", "node", i.Node(), "ends", ends, "err", err, "hint", fault.Hint(err), "wait", wait)
		} else {
			i.log.Warn("certificate not renewed yet", "node", i.Node(), "ends", ends, "err", err, "wait", wait)
		}
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
	}
}

// Refresh renews the certificate where that is due, as Run does, but once: for
// programs that do not live long enough for Run. It tries once, and its errors
// are those of Enroll.
func (i *Identity) Refresh(ctx context.Context) error {
	if i.local || !i.isDue(time.Now(), time.Time{}) {
		return nil
	}
	return i.refresh(ctx)
}

// refresh gets a new certificate, by the one that is there or by the token.
func (i *Identity) refresh(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	tok, err := i.token()
	if err != nil {
		return err
	}
	return i.certify(ctx, tok, i.state.Load())
}

// isDue says whether a certificate is to be renewed, where that was last done
// at last.
func (i *Identity) isDue(now, last time.Time) bool {
	s := i.state.Load()
	if s == nil {
		return true
	}
	if last.IsZero() {
		// A clock from before the certificate was made is wrong, and says nothing of
		// how much of its life is left.
		return now.Before(s.leaf.NotBefore) || !now.Before(s.renewalTime())
	}
	return s.isDueAgain(now, now.Sub(last), now.Round(0).Sub(last.Round(0)))
}

// isDueAgain says whether a certificate is to be renewed, where that was last done so
// long ago: awake by a clock that stands still while the machine sleeps, passed by
// the one on the wall.
func (s *state) isDueAgain(now time.Time, awake, passed time.Duration) bool {
	// The wall clock may be years off; the other one is not.
	slept := passed-awake > clockInterval
	return awake >= s.renewAfter() || (slept || awake >= s.life()/10) && !now.Before(s.renewalTime())
}

// untilDue is how long to sleep at most until the certificate is due.
func (i *Identity) untilDue(last time.Time) time.Duration {
	s := i.state.Load()
	left := time.Until(s.renewalTime())
	if !last.IsZero() {
		left = s.renewAfter() - time.Since(last)
	}
	return max(left, time.Second)
}

func (s *state) life() time.Duration { return s.leaf.NotAfter.Sub(s.leaf.NotBefore) }

// renewAfter is two thirds of the certificate's life, less up to a twentieth of
// it that each certificate has for its own: so machines that were enrolled
// together do not all come together, and one that starts again keeps its time.
func (s *state) renewAfter() time.Duration {
	own := token.FingerprintOf(s.leaf.Raw)
	return s.life()*2/3 - s.life()/20/256*time.Duration(own[0])
}

func (s *state) renewalTime() time.Time { return s.leaf.NotBefore.Add(s.renewAfter()) }

// backoff is how long to wait after a failure.
func backoff(failures int, err error) time.Duration {
	wait := min(minWait<<min(failures, 10), maxWait)
	wait = wait/2 + rand.N(wait/2)
	if after, ok := fault.RetryAfter(err); ok {
		wait = max(wait, min(after, maxWait))
	}
	return wait
}
