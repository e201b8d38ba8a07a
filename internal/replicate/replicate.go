// Package replicate sends states of rows from a server to the server above it: the loop that
// sends them, and the handler that takes them.
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

// A Ledger holds the states to send.
type Ledger interface {
	// States returns the next page of states for a server above with this mark.
	States(ctx context.Context, m replica.Mark, o replica.Offer) (*replica.Page, error)
	// Secret returns a secret of this ledger.
	Secret(ctx context.Context, key string) (string, error)
	// Epoch returns the id that was made with the ledger.
	Epoch() string
}

// Config names the server above, and the states to send.
type Config struct {
	URL string // of the server above, https://host:port
	Dir string // of the identity; made if it is missing
	// Token returns the token to enroll by, of the role upstream. It may be nil, or return
	// fault.ErrNotFound.
	Token func() (token.Token, error)
	Name  string // of this server, for people
	// Finest is minutes, or hours: then rows are sent when their hour is over.
	Finest replica.Resolution
	// Pseudonyms replaces names by pseudonyms.
	Pseudonyms bool
	PageRows   int           // in one page, at most
	Interval   time.Duration // between two pushes
	// MinBackoff and MaxBackoff limit the wait after a failure. It doubles with each failure.
	MinBackoff, MaxBackoff time.Duration
	// IncludeOpen says that rows of minutes that are not over are sent too, and again when
	// they have changed.
	IncludeOpen bool
}

// Default sends minutes, every fifteen seconds.
func Default() Config {
	return Config{PageRows: 10_000, Interval: 15 * time.Second, MinBackoff: time.Second, MaxBackoff: 5 * time.Minute}
}

// Validate returns an error that wraps fault.ErrInvalid if a value cannot work.
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

// secretKey is the key of the ledger's secret from which pseudonyms are made: they are the same
// for all servers above, as long as the ledger exists.
const secretKey = "upstream.secret"

// A Sender sends the states of a ledger to a server above.
type Sender struct {
	cfg      Config
	ledger   Ledger
	id       *enroll.Identity
	upstream upstreamClient
	secret   []byte
	log      *slog.Logger

	rows int // in the next page: less than cfg.PageRows after a page was too large
}

// Open returns a Sender. It sends nothing yet.
func Open(ctx context.Context, cfg Config, l Ledger, log *slog.Logger) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sender{cfg: cfg, ledger: l, log: log.With("upstream", cfg.URL), rows: cfg.PageRows}
	if cfg.Pseudonyms {
		secret, err := l.Secret(ctx, secretKey)
		if err != nil {
			return nil, err
		}
		s.secret = []byte(secret)
		cfg.Name = replica.Pseudonym(s.secret, "server", cfg.Name)
	}
	var err error
	// The ledger identifies this server: it stays the same source on another machine.
	s.id, err = enroll.Open(enroll.Config{
		Dir: cfg.Dir, Server: cfg.URL, Token: cfg.Token, Role: registry.Upstream,
		Facts: enroll.Facts{Machine: l.Epoch(), Boot: l.Epoch(), Name: cfg.Name},
	}, s.log)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", cfg.URL, err)
	}
	s.upstream = upstreamClient{s.id.Server(), s.id.Client()}
	return s, nil
}

// Run enrolls if that is needed, and sends states until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	enrolled := make(chan struct{})
	g.Go(func() error {
		select {
		case <-enrolled:
			_ = s.id.Run(ctx) // it ends with ctx only
		case <-ctx.Done():
		}
		return nil
	})
	g.Go(func() error {
		s.pushLoop(ctx, enrolled)
		return nil
	})
	return g.Wait()
}

// pushLoop pushes until ctx ends. It closes enrolled once there is an identity.
func (s *Sender) pushLoop(ctx context.Context, enrolled chan struct{}) {
	for failures := 0; ; {
		err := s.Push(ctx)
		if ctx.Err() != nil {
			return
		}
		if enrolled != nil && s.id.Node() != "" {
			close(enrolled)
			enrolled = nil
		}
		wait := s.cfg.Interval
		switch {
		case err != nil:
			wait = s.cfg.backoff(failures, err)
			if failures++; failures == 1 || failures%20 == 0 {
				s.log.Warn("cannot send states to the server above", "err", err, "hint", fault.Hint(err), "wait", wait)
			}
		case failures > 0:
			s.log.Info("states are sent to the server above again")
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// backoff returns how long to wait after a failure. After one that a person has to resolve it is
// about MaxBackoff, as the push is tried again nevertheless.
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

// Push sends once all states that the server above lacks. It enrolls there first if that is
// needed.
func (s *Sender) Push(ctx context.Context) error {
	if err := s.id.Enroll(ctx); err != nil {
		return err
	}
	m, err := s.upstream.mark(ctx)
	if err != nil {
		return err
	}
	// If the mark moves between two pages, another server of the same ledger sends too: each
	// page of either moves it forward.
	for moved := 0; ; {
		o := replica.Offer{Finest: s.cfg.Finest, Masked: s.cfg.Pseudonyms, Rows: s.rows}
		if !s.cfg.IncludeOpen {
			o.OpenMinute = time.Now().Unix() / 60
		}
		p, err := s.ledger.States(ctx, m, o)
		if err != nil || p.Empty() {
			return err
		}
		if s.cfg.Pseudonyms {
			p.Mask(s.secret)
		}
		sent, err := wire.EncodeStates(nil, p)
		if err != nil {
			return fmt.Errorf("upstream %s: %w", s.cfg.URL, err)
		}
		next, err := s.upstream.post(ctx, sent)
		failpoint.At("upstream.sent")
		switch {
		case (errors.Is(err, errTooLarge) || errors.Is(err, fault.ErrInvalid)) && s.rows > 1: // a smaller page may be taken
			s.rows /= 2
			continue
		case errors.Is(err, errMarkMoved) && moved < 10:
			moved++
		case err != nil:
			return err
		default:
			s.rows, moved = min(s.rows*2, s.cfg.PageRows), 0
		}
		m = next
	}
}
