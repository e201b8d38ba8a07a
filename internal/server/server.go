// Package server is the loops of a server: it takes batches, books them, and
// answers questions.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/authority"
	"mete.dev/mete/internal/batch"
	"mete.dev/mete/internal/entry"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/ingest"
	"mete.dev/mete/internal/promtext"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/states"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/token"
	"mete.dev/mete/internal/upstream"
)

// A Config says what a server keeps and whom it believes.
type Config struct {
	// State is the directory of all that it keeps, the ledger included unless
	// Database says otherwise.
	State string
	// Database is a path or a URL: see [ledger.Open]. "" is ledger.db in State.
	Database string
	// Names are host names and addresses under which it is reached, beside the
	// machine's own.
	Names []string
	// Cluster is the one of nodes that enrol without a token.
	Cluster string
	// Life is how long certificates of machines are good; 0 is as
	// [authority.Config] has it.
	Life time.Duration
	// Local says that everyone who can reach it is trusted: it listens on the
	// loopback addresses only.
	Local  bool
	Ledger ledger.Config
	Ingest ingest.Config
	// Upstreams are the servers above, to which its rows go. Dir is set by Open
	// where it is "".
	Upstreams []upstream.Config
}

// Default keeps everything in a state directory.
func Default() Config {
	return Config{Ledger: ledger.Default(), Ingest: ingest.Default()}
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	return errors.Join(c.Ledger.Validate(), c.Ingest.Validate())
}

// A Server is a ledger and the ways in and out of it.
type Server struct {
	Ledger    *ledger.Ledger
	Authority *authority.Authority
	Ingest    *ingest.Ingest

	upstreams []*upstream.Upstream
	lock      *os.File // on the state directory

	cfg   Config
	known sync.Map // ids of nodes that are in the ledger
	log   *slog.Logger
}

// Open opens what the server keeps, and makes what is not there yet. It starts
// nothing. The caller closes it. A state that another server has open is
// fault.ErrConflict, and nothing in it is touched.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (_ *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		return nil, fault.WithHint(err, "choose another directory with --state, or make this one writable")
	}
	if cfg.Database == "" {
		cfg.Database = filepath.Join(cfg.State, "ledger.db")
	}
	cfg.Ledger.Upstream = len(cfg.Upstreams) > 0
	s := &Server{cfg: cfg, log: log}
	if s.lock, err = lock(cfg.State); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Ledger, err = ledger.Open(ctx, cfg.Database, cfg.Ledger, log.With("part", "ledger")); err != nil {
		if errors.Is(err, fault.ErrUnavailable) && fault.Hint(err) == "" {
			err = fault.WithHint(err, "check that the database runs, and lets in whom --database names")
		}
		return nil, err
	}
	if err := s.openUpstreams(ctx); err != nil {
		return nil, err
	}
	s.Ingest = ingest.New(cfg.Ingest, s.Ledger, log.With("part", "ingest"))
	s.Authority, err = authority.Open(authority.Config{
		Dir: filepath.Join(cfg.State, "authority"), Names: cfg.Names, Local: cfg.Local, Cluster: cfg.Cluster, Life: cfg.Life, Live: s.Ingest.Live,
	}, s.Ledger, log.With("part", "authority"))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openUpstreams opens the ways to the servers above, each with an identity of
// its own.
func (s *Server) openUpstreams(ctx context.Context) error {
	for _, c := range s.cfg.Upstreams {
		if c.Dir == "" {
			u, err := url.Parse(c.URL)
			if err != nil || u.Host == "" {
				return fault.WithHint(fmt.Errorf("--upstream %q: %w address", c.URL, fault.ErrInvalid), "give it as https://host:port")
			}
			c.Dir = filepath.Join(s.cfg.State, "upstream", strings.ReplaceAll(u.Host, ":", "_"))
		}
		u, err := upstream.Open(ctx, c, s.Ledger, s.log.With("part", "upstream"))
		if err != nil {
			return err
		}
		s.upstreams = append(s.upstreams, u)
	}
	return nil
}

// Close closes the ledger, and lets go of the state. Run has to have returned.
func (s *Server) Close() error {
	var err error
	if s.Ledger != nil {
		err = s.Ledger.Close()
	}
	return errors.Join(err, s.lock.Close())
}

// Run books what comes in, folds, forgets what is old, and tells the servers
// above, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Ingest.Run(ctx) })
	g.Go(func() error { return s.Ledger.Run(ctx) })
	for _, u := range s.upstreams {
		g.Go(func() error { return u.Run(ctx) })
	}
	return g.Wait()
}

// Handler answers agents and people, below /v1/, and /healthz and /metrics.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	enrol := hurry(s.Authority.Handler())
	mux.Handle("/v1/enroll", enrol)
	mux.Handle("/v1/renew", enrol)
	batches := s.Ingest.Handler(s.agent)
	mux.Handle("/v1/batches", batches)
	mux.Handle("/v1/lost", batches)
	below := upstream.NewTaker(s.Ledger, s.source, s.log.With("part", "states")).Handler()
	mux.Handle("/v1/states", below)
	mux.Handle("/v1/states/mark", below)
	mux.Handle("/", s.Questions())
	return mux
}

// claimTime is how long the claim of a machine that enrols may take to arrive: it
// is of one or two packets, and anybody may send one.
const claimTime = 10 * time.Second

// hurry gives requests little time to arrive.
func hurry(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(claimTime)) // a writer without one is a test's
		h.ServeHTTP(w, r)
	})
}

// Questions answers people only.
func (s *Server) Questions() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", api.Text(promtext.ContentType, s.metrics, s.scope, s.log.With("part", "metrics")))
	mux.Handle("/", api.New(s.Ledger, rates{s}, s.scope, time.Now, s.log.With("part", "api")))
	return mux
}

// Admin answers those who may use the state directory, on a socket in it.
func (s *Server) Admin() http.Handler {
	return api.Admin(s.Authority.Tokens(), revoking{s}, time.Now, s.log.With("part", "admin"))
}

// machine says which agent or server a request comes from. The error of one who
// shows nothing that says so has no kind, which are for those who are known.
func (s *Server) machine(r *http.Request) (token.Peer, error) {
	p, err := s.Authority.Identify(r)
	if authority.Unidentified(err) {
		err = fault.WithHint(errors.New(err.Error()), fault.Hint(err))
	}
	return p, err
}

// agent says which node a request comes from.
func (s *Server) agent(r *http.Request) (string, error) {
	p, err := s.machine(r)
	switch {
	case err != nil:
		return "", err
	case p.Role != entry.Agent:
		return "", fault.WithHint(fmt.Errorf("only agents send batches: %w", fault.ErrDenied), "enrol with a token of the role agent")
	}
	return p.Node, s.recall(r.Context(), p)
}

// recall makes a node known that has a certificate of this server and yet is
// not in the ledger: that is an older copy, put back. Otherwise what the node
// holds could never be booked.
func (s *Server) recall(ctx context.Context, p token.Peer) error {
	if _, ok := s.known.Load(p.Node); ok {
		return nil
	}
	_, err := s.Ledger.Node(ctx, p.Node)
	if errors.Is(err, fault.ErrNotFound) {
		now := time.Now().UTC()
		s.log.Warn("a node of this server is not in its ledger: it is taken up again", "node", p.Node)
		err = s.Ledger.PutNode(ctx, entry.Node{ID: p.Node, Cluster: p.Cluster, Name: p.Node, At: now})
		if err == nil {
			err = s.Ledger.Audit(ctx, entry.Audit{At: now, Actor: p.Node, Action: "node.recall", Object: p.Node,
				Detail: "it has a certificate, and the ledger did not know it"})
		}
	}
	if err == nil {
		s.known.Store(p.Node, true)
	}
	return err
}

// source says which server a request comes from.
func (s *Server) source(r *http.Request) (states.Source, error) {
	p, err := s.machine(r)
	switch {
	case err != nil:
		return states.Source{}, err
	case p.Role != entry.Upstream:
		return states.Source{}, fault.WithHint(errors.Join(errors.New("only servers send states"), fault.ErrDenied), "enrol with a token of the role upstream")
	}
	return states.Source{ID: p.Node, Cluster: p.Cluster}, nil
}

// scope says what the one who asks may see.
func (s *Server) scope(r *http.Request) (query.Scope, error) {
	p, err := s.Authority.Identify(r)
	switch {
	case err != nil:
		return query.Scope{}, err
	case p.Role != entry.Viewer:
		return query.Scope{}, fault.WithHint(fmt.Errorf("agents do not read: %w", fault.ErrDenied), "ask with a token of the role viewer")
	case p.Cluster == "":
		return query.Scope{All: true}, nil
	}
	return query.Scope{Clusters: []string{p.Cluster}}, nil
}

// A Way is the way to a server in the same process, for one node.
type Way struct {
	server *Server
	node   string
}

// Way returns the way for a node of this machine.
func (s *Server) Way(node string) Way { return Way{s, node} }

// Offer implements ship.Server.
func (w Way) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	if err := w.server.Authority.Allowed(ctx, w.node); err != nil {
		return batch.Reply{}, err
	}
	return w.server.Ingest.Offer(ctx, w.node, c, sent)
}

// Lost implements ship.Server.
func (w Way) Lost(ctx context.Context, l batch.Lost) (batch.Reply, error) {
	if err := w.server.Authority.Allowed(ctx, w.node); err != nil {
		return batch.Reply{}, err
	}
	return w.server.Ingest.Lost(ctx, w.node, l)
}
