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
	// pollInterval is how often it is looked whether others have given way.
	pollInterval = 250 * time.Millisecond
	// jobTimeout is how long they have for it. A job that measures itself looks for
	// claims as it closes a window, every ten seconds.
	jobTimeout = time.Minute
	// otherUserTimeout is how long jobs of other users have, whose claims do not count
	// otherwise: enough for a job that runs, and little for who only delays the meter.
	otherUserTimeout = 15 * time.Second
)

// AcquireMachine claims this machine for a ledger, and returns once nobody else measures
// part of it. Jobs that measure themselves give way as soon as they see the
// claim; one that does not within a minute, as it is stopped, is not waited for,
// since everyone could hold up the meter of everybody that way.
//
// The error wraps fault.ErrConflict where another meter of the whole machine
// reports to the ledger, and is ctx's where that ends first. One of another user
// than root and this process's does not count: it is told to log. Where the system
// knows no such sockets, nothing is claimed, and the Claim is nil.
func AcquireMachine(ctx context.Context, h *hostfs.FS, ledger string, log *slog.Logger) (*Claim, error) {
	c, err := Acquire(h, ledger, Machine)
	if errors.Is(err, fault.ErrConflict) {
		return nil, secondMeterError(err)
	}
	if err != nil {
		log.Warn("this machine is measured without a claim: a second meter for this ledger would not be noticed", "err", err)
		return nil, nil
	}
	if err := c.waitForOthers(ctx, jobTimeout, otherUserTimeout, log); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// secondMeterError is the error of a second meter of the machine.
func secondMeterError(err error) error {
	return fault.WithHint(err, "one meter is enough for a machine and a ledger: stop the other one, or have this one send to another server")
}

// waitForOthers waits until others have given way: jobs of root and of this user for
// jobTimeout at most, those of other users for otherUserTimeout.
func (c *Claim) waitForOthers(ctx context.Context, patience, courtesy time.Duration, log *slog.Logger) error {
	for began, first := time.Now(), true; ; first = false {
		ignored, err := c.Conflicts()
		by, taken := errors.AsType[*ConflictError](err)
		if err != nil && !taken {
			log.Warn("whether others measure parts of this machine for this ledger is not known", "err", err)
			return nil
		}
		var jobs, strangers []Holder // of trusted users, and of others
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
				log.Warn("another user's process claims to measure this machine for this ledger; that does not count, and measuring goes on", "holder", o.String(),
					"hint", "what it measures is in the ledger twice: end it if it is a meter of mete")
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
			log.Warn("jobs that measure themselves have not given way; what they use may be counted twice", "jobs", fmt.Sprint(all))
			return nil
		case first:
			log.Info("waiting for jobs of mete run --server that measure themselves for this ledger", "jobs", fmt.Sprint(all))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}
