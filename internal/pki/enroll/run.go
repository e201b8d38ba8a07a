package enroll

import (
	"context"
	"math/rand/v2"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/sleep"
)

// minWait and maxWait bound Run's delay after a failed renewal; it doubles each time.
const (
	minWait = time.Minute
	maxWait = time.Hour
)

// clockInterval is the interval at which Run checks the wall clock, because timers stop
// while the machine is suspended.
const clockInterval = time.Hour

// Run renews the certificate until ctx ends, after about two thirds of its life, with
// a jitter per certificate. If the certificate has ended, Run enrolls with the token,
// if there is one. It returns ctx's error.
func (i *Identity) Run(ctx context.Context) error {
	if i.local {
		<-ctx.Done()
		return ctx.Err()
	}
	var last time.Time // of the last success in this run, or zero
	var wait time.Duration
	for failures := 0; ; {
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
		if failures == 0 && !i.isDue(time.Now(), last) {
			wait = min(clockInterval, i.untilDue(last))
			continue
		}
		err := i.refresh(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			last, failures, wait = time.Now(), 0, 0
			continue
		}
		wait = backoff(failures, err)
		failures++
		if ends := i.Expiry(); time.Now().Add(maxWait).After(ends) {
			i.log.Error("cannot renew the certificate, which ends soon", "node", i.Node(), "ends", ends, "err", err, "hint", fault.Hint(err), "wait", wait)
		} else {
			i.log.Warn("cannot renew the certificate; retrying", "node", i.Node(), "ends", ends, "err", err, "wait", wait)
		}
	}
}

// Refresh renews the certificate if that is due. It is for programs too short-lived for
// Run. It tries once; its errors are those of Enroll.
func (i *Identity) Refresh(ctx context.Context) error {
	if i.local || !i.isDue(time.Now(), time.Time{}) {
		return nil
	}
	return i.refresh(ctx)
}

// refresh obtains a new certificate, with the current one or with the token.
func (i *Identity) refresh(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	tok, err := i.token()
	if err != nil {
		return err
	}
	return i.certify(ctx, tok, i.state.Load())
}

// isDue reports whether to renew the certificate, which this run last renewed at last.
func (i *Identity) isDue(now, last time.Time) bool {
	s := i.state.Load()
	if s == nil {
		return true
	}
	if last.IsZero() {
		// A clock before NotBefore is wrong and tells nothing about the remaining life.
		return now.Before(s.leaf.NotBefore) || !now.Before(s.renewalTime())
	}
	passed := time.Duration(now.UnixNano() - last.UnixNano()) // by the wall clock
	return s.isDueAgain(now, now.Sub(last), passed)
}

// isDueAgain reports whether to renew the certificate, given the time since the last
// renewal: awake by the monotonic clock, which stops during suspend, and passed by the
// wall clock.
func (s *state) isDueAgain(now time.Time, awake, passed time.Duration) bool {
	// The wall clock may be years off; the monotonic clock is not.
	slept := passed-awake > clockInterval
	return awake >= s.renewAfter() || (slept || awake >= s.life()/10) && !now.Before(s.renewalTime())
}

// untilDue returns the time until the certificate is due, at least a second.
func (i *Identity) untilDue(last time.Time) time.Duration {
	s := i.state.Load()
	left := time.Until(s.renewalTime())
	if !last.IsZero() {
		left = s.renewAfter() - time.Since(last)
	}
	return max(left, time.Second)
}

func (s *state) life() time.Duration { return s.leaf.NotAfter.Sub(s.leaf.NotBefore) }

// renewAfter returns two thirds of the certificate's life less up to a twentieth, which
// the certificate's fingerprint determines: machines that enrolled together renew at
// different times, and a restart does not change the time.
func (s *state) renewAfter() time.Duration {
	own := token.FingerprintOf(s.leaf.Raw)
	return s.life()*2/3 - s.life()/20/256*time.Duration(own[0])
}

func (s *state) renewalTime() time.Time { return s.leaf.NotBefore.Add(s.renewAfter()) }

// backoff returns the delay after a failure.
func backoff(failures int, err error) time.Duration {
	wait := maxWait
	if failures < 6 {
		wait = minWait << failures
	}
	wait = wait/2 + rand.N(wait/2)
	if after, ok := fault.RetryAfter(err); ok {
		wait = max(wait, min(after, maxWait))
	}
	return wait
}
