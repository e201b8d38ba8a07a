package exclusive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

const (
	// pollInterval is the interval between checks for remaining claims.
	pollInterval = 250 * time.Millisecond
	// jobTimeout is how long to wait for jobs. A standalone job looks for claims when it
	// closes a window, every ten seconds.
	jobTimeout = time.Minute
	// otherUserTimeout is how long to wait for jobs of other users, whose claims otherwise
	// do not count: enough for a real job, and little for a process that only delays the
	// meter.
	otherUserTimeout = 15 * time.Second
)

// AcquireMachine claims this machine for a ledger and returns once no other process
// measures part of it. Standalone jobs give way as soon as they see the claim.
// AcquireMachine waits a minute at most, since otherwise any stopped job could block the
// meter.
//
// The error wraps fault.ErrConflict if another meter of the whole machine reports to the
// ledger, and is the error of ctx if ctx ends first. A meter of a user other than root and
// this one does not count and is logged. On a system without such sockets the Claim is nil.
func AcquireMachine(ctx context.Context, h *hostfs.FS, ledger string, log *slog.Logger) (*Claim, error) {
	c, err := Acquire(h, ledger, Machine)
	if errors.Is(err, fault.ErrConflict) {
		return nil, secondMeterError(err)
	}
	if err != nil {
		log.Warn("measuring this machine without a claim: a second meter for this ledger would not be noticed", "err", err)
		return nil, nil
	}
	if err := c.waitForOthers(ctx, jobTimeout, otherUserTimeout, log); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// secondMeterError adds a hint to the conflict with another meter of the machine.
func secondMeterError(err error) error {
	return fault.WithHint(err, "one meter is enough for a machine and a ledger: stop the other one, or have this one send to another server")
}

// waitForOthers waits until others have given way: at most patience for jobs of root and
// this user, at most courtesy for jobs of other users.
func (c *Claim) waitForOthers(ctx context.Context, patience, courtesy time.Duration, log *slog.Logger) error {
	for began, first := time.Now(), true; ; first = false {
		ignored, err := c.Conflicts()
		by, taken := errors.AsType[*ConflictError](err)
		if err != nil && !taken {
			log.Warn("cannot check whether others measure parts of this machine for this ledger", "err", err)
			return nil
		}
		var jobs, strangers []Holder // of trusted and of other users
		if taken {
			if _, whole := by.MachineHolder(); whole {
				return secondMeterError(err)
			}
			jobs = by.Holders
		}
		for _, o := range ignored {
			switch {
			case o.Scope != Machine:
				strangers = append(strangers, o)
			case first:
				log.Warn("another user's process claims to measure this machine for this ledger; ignoring it", "holder", o.String(),
					"hint", "if it is a meter of mete, stop it: the ledger counts its use twice")
			}
		}
		limit := patience
		if len(jobs) == 0 {
			limit = courtesy
		}
		switch all := append(jobs, strangers...); {
		case len(all) == 0:
			return nil
		case time.Since(began) > limit:
			log.Warn("standalone jobs have not given way; their use may be counted twice", "jobs", fmt.Sprint(all))
			return nil
		case first:
			log.Info("waiting for standalone jobs of mete run --server that report to this ledger", "jobs", fmt.Sprint(all))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}
