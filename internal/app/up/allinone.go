package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/server"
)

// An AllInOneConfig configures a server and an agent in one process.
type AllInOneConfig struct {
	State  string // of both
	Server server.Config
	Agent  agent.Config
}

// DefaultAllInOne returns the defaults of server and agent.
func DefaultAllInOne(state string) AllInOneConfig {
	return AllInOneConfig{State: state, Server: server.Default(), Agent: agent.Default()}
}

// An AllInOne is a running server and agent.
type AllInOne struct {
	Node registry.Node

	server *server.Server
	host   *hostfs.FS
	only   *exclusive.Claim
	agent  *agent.Agent
	admin  net.Listener
	url    atomic.Pointer[string] // of Handler; nil is unknown
	ticks  chan *live.Machine     // the latest tick, until Next takes it
	ended  chan struct{}
	err    error // why it ended; set before ended is closed
	stop   context.CancelFunc
}

// OpenAllInOne opens and runs both until Close.
func OpenAllInOne(ctx context.Context, cfg AllInOneConfig, log *slog.Logger) (_ *AllInOne, err error) {
	s := &AllInOne{ticks: make(chan *live.Machine, 1), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	cfg.Server.State, cfg.Server.Local = filepath.Join(cfg.State, "server"), true
	if s.server, err = server.Open(ctx, cfg.Server, log); err != nil {
		return nil, err
	}
	if err := server.LimitMemory(); err != nil {
		log.Warn("cannot read the memory limit; set GOMEMLIMIT in a control group with one", "err", err)
	}
	if s.admin, err = server.ListenAdmin(cfg.Server.State); err != nil {
		return nil, err
	}
	if s.host, err = hostfs.Open("/"); err != nil {
		return nil, err
	}
	if s.Node, err = s.enroll(ctx); err != nil {
		return nil, err
	}
	ledger := enroll.LedgerID(s.server.Authority.CA())
	if s.only, err = exclusive.AcquireMachine(ctx, s.host, ledger, log); err != nil {
		return nil, err
	}
	cfg.Agent.Spool.Dir = filepath.Join(cfg.State, "agent", "spool", s.Node.ID)
	cfg.Agent.PowerModel = filepath.Join(cfg.State, "agent", "power.json")
	cfg.Agent.Directives.File = filepath.Join(cfg.State, "agent", "directives.json")
	cfg.Agent.Retired = agent.FindRetiredSpools(cfg.Agent.Spool, time.Now(), log)
	cfg.Agent.SelfAccess = s.self
	if s.agent, err = agent.Open(cfg.Agent, s.Node.ID, s.server.Transport(s.Node.ID), log); err != nil {
		return nil, err
	}
	if err := exclusive.MarkAll(ledger, cfg.State, cfg.Agent.Socket); err != nil {
		log.Warn("cannot leave a mark for mete run --server while this agent is down", "err", err)
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.run(ctx)
	return s, nil
}

// enroll finds this machine among the server's nodes, or registers it.
func (a *AllInOne) enroll(ctx context.Context) (registry.Node, error) {
	f, err := enroll.FactsOf(a.host)
	if err != nil {
		return registry.Node{}, err
	}
	return a.server.Authority.EnrollLocal(ctx, f.Machine, f.Boot, f.Name)
}

// run runs both until ctx ends. The server stops after the agent, so that it books the agent's last
// window.
func (a *AllInOne) run(ctx context.Context) {
	defer close(a.ended)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		return a.agent.Run(gctx, a.publish)
	})
	g.Go(func() error { return a.server.Run(serving) })
	g.Go(func() error {
		return server.Serve(serving, a.admin, a.server.AdminHandler(a.server.QueryHandler()), nil)
	})
	a.err = g.Wait()
}

// publish passes the latest tick to Next; it replaces one that Next has not taken.
func (a *AllInOne) publish() {
	m := a.agent.Live()
	select {
	case <-a.ticks:
	default:
	}
	a.ticks <- m
}

// Next waits for a tick that it has not returned yet.
func (a *AllInOne) Next(ctx context.Context) (*live.Machine, error) {
	select {
	case <-a.ended: // drop a tick that is left over
		return nil, a.end()
	default:
	}
	select {
	case m := <-a.ticks:
		return m, nil
	case <-a.ended:
		return nil, a.end()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// end returns why there are no more ticks.
func (a *AllInOne) end() error {
	if a.err != nil {
		return a.err
	}
	return errors.New("measurement ended")
}

// Serve sets the URL of Handler. Jobs that start later learn where they can query their own use.
func (a *AllInOne) Serve(url string) {
	a.url.Store(&url)
	a.server.SetURL(url)
}

// Authorize returns an error unless the sender of a request may see all of this machine.
func (a *AllInOne) Authorize(r *http.Request) error {
	scope, err := a.server.Authorize(r)
	if err == nil && !scope.All && !slices.Contains(scope.Clusters, a.Node.Cluster) {
		err = fmt.Errorf("the token is for another cluster: %w", fault.ErrDenied)
	}
	return err
}

// PageLink returns a URL that opens the page in one browser.
func (a *AllInOne) PageLink() (string, error) { return a.server.PageLink() }

// Socket returns the path of the socket that serves the user of this process and root.
func (a *AllInOne) Socket() string { return a.admin.Addr().String() }

// self returns what a workload of this machine needs to query its own use.
func (a *AllInOne) self(id workload.ID) token.SelfAccess {
	url := a.url.Load()
	if url == nil {
		return token.SelfAccess{}
	}
	return token.SelfAccess{URL: *url + enroll.SelfPath, Token: a.server.Authority.JobKey(a.Node.ID).Sign(token.Job{Workload: id, Node: a.Node.ID, Ends: time.Now().Add(token.JobLife)})}
}

// Handler answers queries on the ledger, below /v1/.
func (a *AllInOne) Handler() http.Handler { return a.server.QueryHandler() }

// Close stops the loops after a last window, and releases everything.
func (a *AllInOne) Close() error {
	a.stop()
	<-a.ended
	return errors.Join(a.err, a.release())
}

// release closes what OpenAllInOne opened.
func (a *AllInOne) release() error {
	var err error
	if a.agent != nil {
		err = a.agent.Close()
	}
	err = errors.Join(err, a.only.Close())
	if a.host != nil {
		err = errors.Join(err, a.host.Close())
	}
	if a.admin != nil {
		if e := a.admin.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	if a.server != nil {
		err = errors.Join(err, a.server.Close())
	}
	return err
}
