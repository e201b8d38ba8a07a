// Package replicate is the way of states from a server to the one above it: the
// loop that tells them, and the handler that takes them.
package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/failpoint"
)

// A Ledger has states to tell.
type Ledger interface {
	// States is what a server above lacks that stands at a mark.
	States(ctx context.Context, m replica.Mark, o replica.Offer) (*replica.Page, error)
	// Secret is a secret of the ledger's own.
	Secret(ctx context.Context, key string) (string, error)
	// Epoch is an id that was made with the ledger.
	Epoch() string
}

// Config says to which server the states go, and which.
type Config struct {
	URL string // of the server above, https://host:port
	Dir string // holds the identity; made where it is not there
	// Token returns the token to enroll by, of the role upstream; it may be nil,
	// or return fault.ErrNotFound.
	Token func() (token.Token, error)
	Name  string // of this server, for people
	// Finest is minutes, or hours: then nothing goes up before its hour is over.
	Finest replica.Resolution
	// Pseudonyms go up instead of names.
	Pseudonyms bool
	PageRows   int           // in one page
	Interval   time.Duration // how often it looks for something to tell
	// MinBackoff and MaxBackoff bound how long it waits after a failure: from the
	// one to the other, twice as long each time.
	MinBackoff, MaxBackoff time.Duration

	includeOpen bool // minutes that are not over go up as well
}

// Default tells minutes, every fifteen seconds.
func Default() Config {
	return Config{PageRows: 10_000, Interval: 15 * time.Second, MinBackoff: time.Second, MaxBackoff: 5 * time.Minute}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.URL == "" || c.Dir == "":
		return fmt.Errorf("upstream: it needs a URL and a directory: %w", fault.ErrInvalid)
	case c.Finest > replica.Hour:
		return fmt.Errorf("upstream %s: resolution: %w", c.URL, fault.ErrInvalid)
	case c.PageRows < 1 || c.PageRows > wire.Default().Rows/2 || c.Interval <= 0:
		return fmt.Errorf("upstream %s: %d rows every %v: %w", c.URL, c.PageRows, c.Interval, fault.ErrInvalid)
	case c.MinBackoff < time.Millisecond || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("upstream %s: back-off from %v to %v: %w", c.URL, c.MinBackoff, c.MaxBackoff, fault.ErrInvalid)
	}
	return nil
}

// secretKey is where the ledger keeps what pseudonyms are made with: they stay
// the same as long as the ledger does, for all servers above.
const secretKey = "upstream.secret"

// A Sender tells the states of a ledger to a server above.
type Sender struct {
	cfg      Config
	ledger   Ledger
	id       *enroll.Identity
	upstream upstreamClient
	secret   []byte
	log      *slog.Logger

	rows int // in the next page: fewer, where pages turn out too large
}

// Open returns an Upstream. It asks nobody.
func Open(ctx context.Context, cfg Config, l Ledger, log *slog.Logger) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	u := &Sender{cfg: cfg.tune(), ledger: l, log: log.With("upstream", cfg.URL), rows: cfg.PageRows}
	if cfg.Pseudonyms {
		secret, err := l.Secret(ctx, secretKey)
		if err != nil {
			return nil, err
		}
		u.secret = []byte(secret)
		cfg.Name = replica.Pseudonym(u.secret, "server", cfg.Name)
	}
	var err error
	// The ledger speaks for the server: whoever has it is the same source, on
	// whatever machine.
	u.id, err = enroll.Open(enroll.Config{
		Dir: cfg.Dir, Server: cfg.URL, Token: cfg.Token, Role: registry.Upstream,
		Facts: enroll.Facts{Machine: l.Epoch(), Boot: l.Epoch(), Name: cfg.Name},
	}, u.log)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", cfg.URL, err)
	}
	u.upstream = upstreamClient{u.id.Server(), u.id.Client()}
	return u, nil
}

// Run enrolls where that is needed, and tells what there is, until ctx ends.
func (u *Sender) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	enrolled := make(chan struct{})
	g.Go(func() error {
		select {
		case <-enrolled:
			_ = u.id.Run(ctx) // it ends with ctx only
		case <-ctx.Done():
		}
		return nil
	})
	g.Go(func() error {
		u.pushLoop(ctx, enrolled)
		return nil
	})
	return g.Wait()
}

// pushLoop turns the loop. It closes enrolled once there is an identity.
func (u *Sender) pushLoop(ctx context.Context, enrolled chan struct{}) {
	for failures := 0; ; {
		err := u.Push(ctx)
		if ctx.Err() != nil {
			return
		}
		if enrolled != nil && u.id.Node() != "" {
			close(enrolled)
			enrolled = nil
		}
		wait := u.cfg.Interval
		switch {
		case err != nil:
			wait = u.cfg.backoff(failures, err)
			if failures++; failures == 1 || failures%20 == 0 {
				u.log.Warn("the server above cannot be told", "err", err, "hint", fault.Hint(err), "wait", wait)
			}
		case failures > 0:
			u.log.Info("the server above is told again")
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// backoff is how long to wait after a failure. One that a person has to mend is
// tried again all the same.
func (c Config) backoff(failures int, err error) time.Duration {
	wait := min(c.MinBackoff<<min(failures, 10), c.MaxBackoff)
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrInvalid) {
		wait = c.MaxBackoff
	}
	wait = wait/2 + rand.N(wait/2)
	if after, ok := fault.RetryAfter(err); ok {
		wait = max(wait, after)
	}
	return wait
}

// Push tells all that the server above lacks, once. It enrolls there first, where
// that is needed.
func (u *Sender) Push(ctx context.Context) error {
	if err := u.id.Enroll(ctx); err != nil {
		return err
	}
	m, err := u.upstream.mark(ctx)
	if err != nil {
		return err
	}
	// Who moves the mark between two of our pages is another server of the same
	// ledger; each page that either sends brings both further.
	for moved := 0; ; {
		o := replica.Offer{Finest: u.cfg.Finest, Masked: u.cfg.Pseudonyms, Rows: u.rows}
		if !u.cfg.includeOpen {
			o.OpenMinute = time.Now().Unix() / 60
		}
		p, err := u.ledger.States(ctx, m, o)
		if err != nil || p.Empty() {
			return err
		}
		if u.cfg.Pseudonyms {
			p.Mask(u.secret)
		}
		sent, err := wire.EncodeStates(nil, p)
		if err != nil {
			return fmt.Errorf("upstream %s: %w", u.cfg.URL, err)
		}
		next, err := u.upstream.post(ctx, sent)
		failpoint.At("upstream.sent")
		switch {
		case errors.Is(err, errTooLarge) && u.rows > 1:
			u.rows /= 2
			continue
		case errors.Is(err, errMarkMoved) && moved < 10:
			moved++
		case err != nil:
			return err
		default:
			u.rows, moved = min(u.rows*2, u.cfg.PageRows), 0
		}
		m = next
	}
}
