// Package standalone sends what a single job used to a server, where no agent does:
// mete run --server. The job is a workload of a node of its own kind, which has
// no whole: what else the machine did is not known.
//
// Several jobs of one user may run at once. They share an identity, and each has
// a slot: a spool that it takes for its time, and leaves to a later one. What a
// job could not send is in its slot and goes with the next job.
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
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// A Config says where a job's figures go.
type Config struct {
	Dir    string // state directory, for jobs of all servers
	Server string // as of enroll.Config
	Token  func() (token.Token, error)
	// Wait is for how long the end of a job, or the start of the first one, waits
	// for the server.
	Wait    time.Duration
	Window  time.Duration // how long a window is, of a job that is old enough
	Spool   spool.Config  // but for Dir
	Sender  sender.Config
	Version string // of the program
}

// Default is that of agents, with a smaller spool: there may be many slots.
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
	// Unreachable says why the server could not be asked for an identity yet; nil where
	// there is one.
	Unreachable error
	// ledgerID is that of the token, as long as there is no identity.
	ledgerID string
}

// Open enrolls with the server, where that was not done before. A server that
// cannot be reached is no error: the job may go on without. One that wraps
// fault.ErrDenied or fault.ErrInvalid says what is wrong with what was asked.
func Open(ctx context.Context, cfg Config, h *hostfs.FS) (*Sender, error) {
	base, err := url.Parse(cfg.Server)
	if err != nil || base.Host == "" {
		// The rest of what can be wrong with it enroll finds.
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
	// One on the loopback without TLS is asked each time, as its ledger may be
	// another one by now.
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
		return o, nil // good enough to measure for
	case tok.IsZero():
		return nil, err // nor is it known which ledger it would be
	}
	o.Unreachable, o.ledgerID = err, enroll.LedgerID(tok.CA())
	return o, nil
}

// load takes up the identity that is there, or none.
func (o *Sender) load() error {
	facts, err := enroll.FactsOf(o.h)
	if err != nil {
		return err
	}
	// The machine as a whole is another node, which an agent may become.
	facts.Machine += " jobs"
	id, err := enroll.Open(enroll.Config{Dir: filepath.Join(o.dir, "identity"), Server: o.cfg.Server, Token: o.cfg.Token, Facts: facts},
		slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	o.id = id
	return nil
}

// enroll makes sure that there is an identity.
// One process at a time does that, so that several that start together do not
// use up a token.
func (o *Sender) enroll(ctx context.Context) error {
	lock, err := o.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which nothing was written to
	if o.id.Node() == "" {
		// Another one may have enrolled meanwhile.
		if err := o.load(); err != nil {
			return err
		}
	}
	return o.id.Enroll(ctx)
}

// renew gets a new certificate where that is due.
func (o *Sender) renew(ctx context.Context) error {
	lock, err := o.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which nothing was written to
	return o.id.Refresh(ctx)
}

// lock waits for the lock of the identity.
func (o *Sender) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(o.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
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

// LedgerID tells the server's ledger from others; "" is not known.
func (o *Sender) LedgerID() string {
	if l := o.id.LedgerID(); l != "" {
		return l
	}
	return o.ledgerID
}

// Server is the address of the server.
func (o *Sender) Server() string { return o.id.Server() }

// SelfAccess is what a job needs to ask the server for its own use, with the path of a file
// in place of the certificate of the server's authority. It is empty where there is
// nothing to ask with.
func (o *Sender) SelfAccess(job string) token.SelfAccess {
	node := o.id.Node()
	s := o.id.Self(node, workload.NewID(node, workload.Job, job))
	if s.CA == "" {
		return s
	}
	path, err := enroll.WriteCA(o.dir, s.CA)
	if err != nil {
		return token.SelfAccess{}
	}
	s.CA = path
	return s
}

// newSender returns what sends the batches of a spool.
func (o *Sender) newSender(s *spool.Spool) *sender.Sender {
	return sender.New(o.cfg.Sender, s, sender.NewHTTP(o.base, o.id.Client(), o.cfg.Version), o.clock, slog.New(slog.DiscardHandler))
}
