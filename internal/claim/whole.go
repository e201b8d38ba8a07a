package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
)

const (
	// again is how often it is looked whether others have given way.
	again = 250 * time.Millisecond
	// patience is how long they have for it. A job that measures itself looks for
	// claims as it closes a window, every ten seconds.
	patience = time.Minute
)

// Whole claims this machine for a ledger, and returns once nobody else measures
// part of it. Jobs that measure themselves give way as soon as they see the
// claim; one that does not within a minute, as it is stopped, is not waited for,
// since everyone could hold up the meter of everybody that way.
//
// The error wraps fault.ErrConflict where another meter of the whole machine
// reports to the ledger, and is ctx's where that ends first. Where the system
// knows no such sockets, nothing is claimed, and the Claim is nil.
func Whole(ctx context.Context, h *host.Host, ledger string, log *slog.Logger) (*Claim, error) {
	c, err := Make(h, ledger, Machine)
	for try := 0; errors.Is(err, fault.ErrUnavailable) && try < 10; try++ {
		c, err = Make(h, ledger, Machine)
	}
	if errors.Is(err, fault.ErrConflict) {
		return nil, fault.WithHint(err, "one meter is enough for a machine and a ledger: stop the other one, or have this one send to another server")
	}
	if err != nil {
		log.Warn("this machine is measured without a claim: a second meter for this ledger would not be noticed", "err", err)
		return nil, nil
	}
	if err := c.giveWay(ctx, log); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// giveWay waits until others have given way.
func (c *Claim) giveWay(ctx context.Context, log *slog.Logger) error {
	for began, first := time.Now(), true; ; first = false {
		err := c.Others()
		by, taken := errors.AsType[*Taken](err)
		switch {
		case err == nil:
			return nil
		case !taken:
			log.Warn("whether others measure parts of this machine for this ledger is not known", "err", err)
			return nil
		case time.Since(began) > patience:
			log.Warn("jobs that measure themselves have not given way; what they use may be counted twice", "jobs", fmt.Sprint(by.By))
			return nil
		case first:
			log.Info("waiting for jobs of mete run --server that measure themselves for this ledger", "jobs", fmt.Sprint(by.By))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		}
	}
}
