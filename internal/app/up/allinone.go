package up

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/server"
)

// An AllInOneConfig says where both keep their things, and how to measure.
type AllInOneConfig struct {
	State  string // directory
	Server server.Config
	Agent  agent.Config
}

// DefaultAllInOne keeps what servers and agents keep by default.
func DefaultAllInOne(state string) AllInOneConfig {
	return AllInOneConfig{State: state, Server: server.Default(), Agent: agent.Default()}
}

// An AllInOne is both, running.
type AllInOne struct {
	Node registry.Node

	server *server.Server
	host   *hostfs.FS
	only   *exclusive.Claim
	agent  *agent.Agent
	admin  net.Listener
	url    atomic.Pointer[string] // where Handler is asked; nil is not known
	ticks  chan *live.Machine     // the latest tick that nobody has taken
	ended  chan struct{}
	err    error // why it ended; set before ended is closed
	stop   context.CancelFunc
}

// OpenAllInOne opens both and lets them run, until Close.
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
	cfg.Agent.Retired = agent.FindRetiredSpools(cfg.Agent.Spool, time.Now(), log)
	cfg.Agent.SelfAccess = s.self
	if s.agent, err = agent.Open(cfg.Agent, s.Node.ID, s.server.Transport(s.Node.ID), log); err != nil {
		return nil, err
	}
	if socket := cfg.Agent.Socket; socket != "" {
		if err := exclusive.Mark(filepath.Dir(socket), ledger); err != nil {
			log.Warn("mete run --server does not see this agent while it is away", "err", err)
		}
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.run(ctx)
	return s, nil
}

// enroll finds this machine among the server's nodes, or makes it one.
func (s *AllInOne) enroll(ctx context.Context) (registry.Node, error) {
	f, err := enroll.FactsOf(s.host)
	if err != nil {
		return registry.Node{}, err
	}
	return s.server.Authority.EnrollLocal(ctx, f.Machine, f.Boot, f.Name)
}

// run turns the loops of both until ctx ends. The server ends after the agent,
// whose last window it is yet to book.
func (s *AllInOne) run(ctx context.Context) {
	defer close(s.ended)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		return s.agent.Run(gctx, s.publish)
	})
	g.Go(func() error { return s.server.Run(serving) })
	g.Go(func() error { return server.Serve(serving, s.admin, s.server.AdminHandler(), nil) })
	s.err = g.Wait()
}

// publish puts the latest tick where Next takes it, in place of one that nobody
// took.
func (s *AllInOne) publish() {
	m := s.agent.Machine.Live()
	select {
	case <-s.ticks:
	default:
	}
	s.ticks <- m
}

// Next waits for a tick that was not returned yet.
func (s *AllInOne) Next(ctx context.Context) (*live.Machine, error) {
	select {
	case <-s.ended: // a tick that is left over is nobody's any more
		return nil, s.end()
	default:
	}
	select {
	case m := <-s.ticks:
		return m, nil
	case <-s.ended:
		return nil, s.end()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// end says why there are no more ticks.
func (s *AllInOne) end() error {
	if s.err != nil {
		return s.err
	}
	return errors.New("measuring has ended")
}

// Serve says at which URL Handler is asked: from then on jobs that begin are told
// where they can ask for their own use.
func (s *AllInOne) Serve(url string) { s.url.Store(&url) }

// self is what a workload of this machine needs to ask for its own use.
func (s *AllInOne) self(id workload.ID) token.SelfAccess {
	url := s.url.Load()
	if url == nil {
		return token.SelfAccess{}
	}
	return token.SelfAccess{URL: *url + enroll.SelfPath, Token: s.server.Authority.JobKey(s.Node.ID).Sign(token.Job{Workload: id, Node: s.Node.ID, Ends: time.Now().Add(token.JobLife)})}
}

// Handler answers questions about the ledger, below /v1/.
func (s *AllInOne) Handler() http.Handler { return s.server.QueryHandler() }

// Close ends the loops, with a last window, and gives everything back.
func (s *AllInOne) Close() error {
	s.stop()
	<-s.ended
	return errors.Join(s.err, s.release())
}

// release gives back what was opened.
func (s *AllInOne) release() error {
	var err error
	if s.agent != nil {
		err = s.agent.Close()
	}
	err = errors.Join(err, s.only.Close())
	if s.host != nil {
		err = errors.Join(err, s.host.Close())
	}
	if s.admin != nil {
		if e := s.admin.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Close())
	}
	return err
}
