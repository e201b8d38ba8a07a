// Package standalone sends the use of a single job to a server, on a machine without an agent: mete
// run --server. The job is a workload of a special node without a whole: the use of the rest of the
// machine is unknown.
//
// Several jobs of one user may run at once. They share an identity, and each has a slot: a spool
// that it uses while it runs and leaves to a later job. Windows that a job could not send stay in
// its slot and are sent with the next job.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// A Config configures where a job's figures are sent.
type Config struct {
	Dir    string // state directory, for jobs of all servers
	Server string // as in enroll.Config
	Token  func() (token.Token, error)
	// Wait is how long the end of a job, or the start of the first, waits for the server.
	Wait    time.Duration
	Window  time.Duration // maximum length of a window
	Spool   spool.Config  // except Dir
	Sender  sender.Config
	Version string // of the program
}

// Default is the default of agents with a smaller spool, as there may be many slots.
func Default() Config {
	c := Config{Wait: 10 * time.Second, Window: 10 * time.Second, Spool: spool.Default(), Sender: sender.Default()}
	c.Spool.MaxBytes = 64 << 20
	return c
}

// A Sender is the identity of jobs that send to one server.
type Sender struct {
	cfg  Config
	h    *hostfs.FS
	boot string
	dir  string
	base *url.URL
	id   *enroll.Identity
	// Unreachable says why enrollment failed; nil if there is an identity.
	Unreachable error
	// ledgerID is the ledger of the token, while there is no identity.
	ledgerID string
}

// Open enrolls with the server if needed. If the server is unreachable, Open succeeds: the job may
// run without it. An error that wraps fault.ErrDenied or fault.ErrInvalid means that the request is
// wrong.
func Open(ctx context.Context, cfg Config, h *hostfs.FS) (*Sender, error) {
	base, err := url.Parse(cfg.Server)
	if err != nil || base.Host == "" {
		// enroll detects other errors of the address.
		return nil, fault.WithHint(fmt.Errorf("server %q: %w address", cfg.Server, fault.ErrInvalid), "give it as https://host:port")
	}
	o := &Sender{cfg: cfg, h: h, dir: filepath.Join(cfg.Dir, strings.ReplaceAll(base.Host, ":", "_")), base: base}
	if o.boot, err = h.BootID(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return nil, err
	}
	if err := o.load(); err != nil {
		return nil, err
	}
	tok, err := cfg.Token()
	// Open enrolls with a loopback server without TLS each time, since it may have another ledger.
	if o.id.Node() != "" && base.Scheme != "http" && (err != nil || !o.id.IsForOtherAuthority(tok)) {
		return o, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Wait)
	defer cancel()
	err = o.enroll(ctx)
	_, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case isPath, errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrInvalid):
		return nil, err
	case o.id.Node() != "":
		return o, nil // sufficient for measuring
	case tok.IsZero():
		return nil, err // and the ledger is unknown
	}
	o.Unreachable, o.ledgerID = err, enroll.LedgerID(tok.CA())
	return o, nil
}

// load loads the identity, if any.
func (s *Sender) load() error {
	facts, err := enroll.FactsOf(s.h)
	if err != nil {
		return err
	}
	// The machine itself is another node, which an agent may enroll.
	facts.Machine = registry.JobsMachineID(facts.Machine)
	id, err := enroll.Open(enroll.Config{Dir: filepath.Join(s.dir, "identity"), Server: s.cfg.Server, Token: s.cfg.Token, Facts: facts},
		slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.id = id
	return nil
}

// enroll gives s an identity, unless it has one. A lock serializes processes, so that several that
// start together do not use up a token.
func (s *Sender) enroll(ctx context.Context) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written to it
	if s.id.Node() == "" {
		// Another process may have enrolled meanwhile.
		if err := s.load(); err != nil {
			return err
		}
	}
	return s.id.Enroll(ctx)
}

// renew renews the certificate if that is due.
func (s *Sender) renew(ctx context.Context) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written to it
	return s.id.Refresh(ctx)
}

// lock waits for the lock of the identity.
func (s *Sender) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("%s: lock: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s: held by another mete run: %w", f.Name(), fault.ErrUnavailable), f.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// LedgerID returns the id of the server's ledger; "" if unknown.
func (s *Sender) LedgerID() string {
	if l := s.id.LedgerID(); l != "" {
		return l
	}
	return s.ledgerID
}

// Server returns the address of the server.
func (s *Sender) Server() string { return s.id.Server() }

// SelfAccess returns what a job needs to query its own use, with the path of a file for the CA
// certificate. It is empty if there is no access.
func (s *Sender) SelfAccess(job string) token.SelfAccess {
	node := s.id.Node()
	access := s.id.Self(node, workload.NewID(node, workload.Job, job))
	if access.CA == "" {
		return access
	}
	path, err := enroll.WriteCA(s.dir, access.CA)
	if err != nil {
		return token.SelfAccess{}
	}
	access.CA = path
	return access
}

// newSender returns a sender for a spool.
func (s *Sender) newSender(sp *spool.Spool) *sender.Sender {
	return sender.New(s.cfg.Sender, sp, sender.NewHTTP(s.base, s.id.Client(), s.cfg.Version), s.clock, slog.New(slog.DiscardHandler))
}
