package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/statedir"
)

// errNewIdentity ends the agent's loops after it received another identity.
var errNewIdentity = errors.New("a new identity")

// runWithServer enrolls at the server, then measures for it until ctx ends.
func runWithServer(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	if err := cfg.validate(); err != nil {
		return err
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	facts, err := enroll.FactsOf(h)
	if err != nil {
		return err
	}
	facts = facts.Named(cfg.Name)
	id, err := enroll.Open(enroll.Config{Dir: filepath.Join(cfg.State, "identity"), Server: cfg.Server, Token: cfg.readToken, Facts: facts},
		log.With("part", "enroll"))
	if err != nil {
		return withStateHint(err)
	}
	for {
		if err := cfg.waitEnrolled(ctx, id, log); err != nil || ctx.Err() != nil {
			return withStateHint(err)
		}
		if err := measure(ctx, cfg, h, id, log); !errors.Is(err, errNewIdentity) {
			return err
		}
	}
}

// nameOf returns the name of this machine.
func (c *Config) nameOf(h *hostfs.FS) (string, error) {
	if c.Name != "" {
		return c.Name, nil
	}
	return h.Hostname()
}

// validate reports configuration errors before the agent enrolls.
func (c *Config) validate() error {
	if c.State == "" {
		return fault.WithHint(fmt.Errorf("no directory for this machine's identity: %w", fault.ErrInvalid), "give one with --state, or set METE_STATE or HOME")
	}
	a := c.Agent
	a.Machine, a.Spool.Dir = c.Machine, c.State
	return a.Validate()
}

// withStateHint adds a hint to an error about the state directory.
func withStateHint(err error) error {
	_, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case fault.Hint(err) != "":
		return err
	case errors.Is(err, fault.ErrConflict):
		return fault.WithHint(err, "another agent runs with this state: stop it, or choose another directory with --state")
	case isPath:
		return fault.WithHint(fmt.Errorf("--state: %w", err), "make the directory writable for this user, or choose another one with --state or METE_STATE")
	}
	return err
}

// waitEnrolled retries until the server issues an identity. Without a previous identity, an error
// that only a person can fix ends it. With one, even one that the server no longer accepts, it
// returns: measuring goes on, and the windows wait in the spool until someone fixes the identity. A
// token of another server also ends it, unless the agent can move to that server.
func (c *Config) waitEnrolled(ctx context.Context, id *enroll.Identity, log *slog.Logger) error {
	wait := time.Second
	for first := true; ; first = false {
		err := id.Enroll(ctx)
		path, isPath := errors.AsType[*fs.PathError](err)
		switch {
		case err == nil, ctx.Err() != nil:
			return nil
		case errors.Is(err, fault.ErrInvalid), isPath && !errors.Is(path, syscall.ENOSPC):
			return err
		case errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrNotFound):
			tok, missing := c.readToken()
			switch {
			case id.Node() == "" && strings.HasPrefix(id.Server(), "http:"):
				return err // without TLS a token does not help
			case id.Node() == "" && errors.Is(missing, fault.ErrNotFound):
				return missing // which is more specific
			case id.Node() == "" || missing == nil && id.IsForOtherAuthority(tok):
				return err
			}
			log.Error("cannot renew this machine's identity; windows wait in the spool", fault.Attrs(err, "node", id.Node())...)
			return nil
		case id.Node() != "":
			log.Warn("cannot renew this machine's identity yet; windows wait in the spool", "node", id.Node(), "err", err)
			return nil
		case first:
			log.Warn("cannot enroll yet; retrying", fault.Attrs(err, "server", id.Server())...)
		}
		pause := wait/2 + rand.N(wait)
		if after, ok := fault.RetryAfter(err); ok {
			pause += min(after, time.Hour)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		wait = min(2*wait, time.Minute)
	}
}

// measure runs the agent under its present identity.
func measure(ctx context.Context, cfg Config, h *hostfs.FS, id *enroll.Identity, log *slog.Logger) (err error) {
	base, err := url.Parse(id.Server())
	if err != nil {
		return err
	}
	only, err := exclusive.AcquireMachine(ctx, h, id.LedgerID(), log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, only.Close()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := cfg.Agent
	c.Machine = cfg.Machine
	c.Socket = cfg.Socket
	// Each identity has a spool of its own.
	c.Spool.Dir = filepath.Join(cfg.State, "spool", id.Node())
	c.PowerModel = filepath.Join(cfg.State, "power.json")
	c.Directives.File = filepath.Join(cfg.State, "directives.json")
	c.Retired = agent.FindRetiredSpools(c.Spool, time.Now(), log)
	c.Sender.Reenroll = func(ctx context.Context) error {
		if err := id.Reenroll(ctx); err != nil {
			return err
		}
		stop(errNewIdentity)
		return nil
	}
	node := id.Node()
	c.SelfAccess = func(w workload.ID) token.SelfAccess { return id.Self(node, w) }
	server := &nodeServer{HTTP: sender.NewHTTP(base, id.Client(), cfg.Version), directives: directives.NewHTTP(base, id.Client()), id: id, node: id.Node(), onOtherNode: func() { stop(errNewIdentity) }}
	name, err := cfg.nameOf(h)
	if err != nil {
		return err
	}
	var a *agent.Agent
	shown := cfg.newMachineMetrics(name)
	if cfg.Status != "" {
		c.OnWindow = func(w *usage.Window, name func(*workload.Workload) string) {
			shown.addWindow(w, name, a.Machine.Accounts().Meters())
		}
	}
	a, err = agent.Open(c, id.Node(), server, log)
	if err != nil {
		return withStateHint(err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	server.Spool = func() (bytes, limit int64) {
		st := a.Spool.Stats()
		return st.Waiting, st.Limit
	}
	if err := exclusive.MarkAll(id.LedgerID(), filepath.Dir(cfg.State), c.Socket); err != nil {
		log.Warn("cannot leave a mark for mete run --server while this agent is down", "err", err)
	}
	log.Info("measuring", "node", id.Node(), "reader", a.Machine.Reader, "scope", string(a.Machine.Scope()), "tick", c.Machine.Tick, "window", c.Machine.Window, "server", id.Server())
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(gctx, nil) })
	g.Go(func() error {
		if err := id.Run(gctx); gctx.Err() == nil {
			return err
		}
		return nil
	})
	g.Go(func() error { return releaseIdleMemory(gctx, c.Machine.Window) })
	if cfg.Status != "" {
		g.Go(func() error { return serveStatus(gctx, cfg.Status, statusOf(a, shown)) })
	}
	err = g.Wait()
	if errors.Is(context.Cause(ctx), errNewIdentity) {
		return errors.Join(errNewIdentity, err)
	}
	return err
}

// nodeServer is the connection to the server for one node id. It never sends windows of one id
// under another, which this machine may get at any time.
type nodeServer struct {
	*sender.HTTP
	directives  *directives.HTTP
	id          *enroll.Identity
	node        string
	onOtherNode func() // called when the machine becomes another node
}

// check returns an error if the machine is no longer the same node.
func (n *nodeServer) check() error {
	if n.id.Node() == n.node {
		return nil
	}
	n.onOtherNode()
	return fmt.Errorf("this machine is no longer node %s: %w", n.node, fault.ErrDenied)
}

// Offer implements sender.Server.
func (n *nodeServer) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	if err := n.check(); err != nil {
		return batch.Reply{}, err
	}
	return n.HTTP.Offer(ctx, c, sent)
}

// Lost implements sender.Server.
func (n *nodeServer) Lost(ctx context.Context, l batch.Loss) (batch.Reply, error) {
	if err := n.check(); err != nil {
		return batch.Reply{}, err
	}
	return n.HTTP.Lost(ctx, l)
}

// Directives implements directives.Server.
func (n *nodeServer) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (directive.List, string, bool, error) {
	if err := n.check(); err != nil {
		return directive.List{}, "", false, err
	}
	return n.directives.Directives(ctx, tag, wait, rejected)
}

// Section implements directives.Server.
func (n *nodeServer) Section(ctx context.Context, hash string) ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	return n.directives.Section(ctx, hash)
}

// readToken reads the token. It returns fault.ErrNotFound if there is none: an enrolled machine
// needs none, and its file may be gone.
func (c *Config) readToken() (token.Token, error) {
	text := c.Token
	if c.TokenFile != "" {
		b, err := os.ReadFile(c.TokenFile)
		if errors.Is(err, fs.ErrNotExist) {
			return token.Token{}, fault.WithHint(fmt.Errorf("--token-file: %w: %w", err, fault.ErrNotFound), makeToken)
		}
		if err != nil {
			return token.Token{}, fault.WithHint(fmt.Errorf("--token-file: %w: %w", err, fault.ErrInvalid), "make it readable for the user that the agent runs as")
		}
		text = string(b)
	}
	if text = strings.TrimSpace(text); text == "" {
		return token.Token{}, fault.WithHint(fmt.Errorf("this machine is not enrolled and has no token: %w", fault.ErrNotFound), makeToken)
	}
	return token.Parse(text)
}

// makeToken is the hint on how to get a token.
const makeToken = "make one with `mete token create --role agent` on the server, and give it by --token-file or METE_TOKEN"

// stateDir returns the directory of the agent's state.
func stateDir() string {
	dir, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "agent")
}

// socketPath returns the path at which jobs find this agent.
func socketPath() string { return socket.Path(os.Getenv, os.Geteuid()) }
