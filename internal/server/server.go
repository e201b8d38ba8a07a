// Package server is the loops of a server: it takes batches, books them, and
// answers questions.
package server

import (
	"cmp"
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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/prom/alert"
	promapi "mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/replicate"
	"mete.dev/mete/internal/server/meters"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/web"
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
	// Cluster is the one of nodes that enroll without a token.
	Cluster string
	// Life is how long certificates of machines are good; 0 is as
	// [ca.Config] has it.
	Life time.Duration
	// Local says that everyone who can reach it is trusted: it listens on the
	// loopback addresses only.
	Local  bool
	Ledger ledger.Config
	Ingest receiver.Config
	// Metrics is the time series database; its Dir is metrics in State where it
	// is "". Query bounds what is asked of it; its Memory is a quarter of what the
	// process may have where it is 0.
	Metrics tsdb.Config
	Query   promapi.Config
	// Alerts is which rules there are and who is told; its State is alerts.json in
	// State where it is "". Caps are the caps of power that rules may ask for.
	Alerts alert.Config
	Caps   []rule.Cap
	// Version is the program's.
	Version string
	// Upstreams are the servers above, to which its rows go. Dir is set by Open
	// where it is "".
	Upstreams []replicate.Config
	// Meters are the meters outside the machines that it reads.
	Meters []external.Spec
	// Remote are the receivers that are told of all samples.
	Remote []remotewrite.Receiver
}

// Default keeps everything in a state directory.
func Default() Config {
	return Config{Ledger: ledger.Default(), Ingest: receiver.Default(), Metrics: tsdb.Default(), Query: promapi.Default(), Alerts: alert.Default()}
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	return errors.Join(c.Ledger.Validate(), c.Ingest.Validate(), c.Metrics.Validate(), c.Query.Validate(), c.Alerts.Validate())
}

// A Server is a ledger and the ways in and out of it.
type Server struct {
	Ledger    *ledger.Ledger
	Authority *ca.Authority
	Ingest    *receiver.Receiver
	Meters    *meters.Collector // nil without meters
	Metrics   *tsdb.Store

	prom        *promapi.API
	queryLog    *promapi.Log // of queries; nil where none is kept
	alerts      *alert.Alerts
	remote      *remotewrite.Writer
	remoteWrite *remotewrite.Handler
	upstreams   []*replicate.Sender
	registry    *prometheus.Registry // of the metrics that need no query of the ledger
	lock        *os.File             // on the state directory
	backupMu    sync.Mutex           // held by a backup
	ctx         context.Context      // of what is not to outlive it
	cancel      context.CancelFunc

	cfg        Config
	knownNodes sync.Map // ids of nodes that are in the ledger
	log        *slog.Logger
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
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
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
	if len(cfg.Meters) > 0 {
		if s.Meters, err = meters.New(cfg.Meters, s.Ledger, log.With("part", "meters")); err != nil {
			return nil, err
		}
	}
	if cfg.Metrics.Dir == "" {
		cfg.Metrics.Dir = filepath.Join(cfg.State, "metrics")
	}
	stock := prometheus.NewRegistry() // what Prometheus's packages count; /metrics does not show it
	if s.Metrics, err = tsdb.Open(cfg.Metrics, s.Ledger, stock, log.With("part", "tsdb")); err != nil {
		return nil, err
	}
	if s.remote, err = remotewrite.NewWriter(cfg.Remote, s.Metrics.DB(), log.With("part", "remote")); err != nil {
		return nil, err
	}
	s.remoteWrite = remotewrite.NewHandler(s.Metrics.DB(), s.authorizeWriter, log.With("part", "remote"))
	if cfg.Alerts.State == "" {
		cfg.Alerts.State = filepath.Join(cfg.State, "alerts.json")
	}
	if cfg.Query.Memory == 0 {
		if cfg.Query.Memory, err = queryMemory(); err != nil {
			log.Warn("it is not known how much memory there is: queries get what suits a small machine", "err", err)
		}
	}
	if s.queryLog, err = promapi.OpenLog(cfg.Query.Log, log.With("part", "query")); err != nil {
		return nil, err
	}
	// Rules do not wait for what people ask.
	if s.alerts, err = alert.Open(cfg.Alerts, promapi.Engine(cfg.Query, s.queryLog, log.With("part", "rules")), s.Metrics, stock, log.With("part", "alerts")); err != nil {
		return nil, err
	}
	if s.prom, err = promapi.New(cfg.Query, s.Metrics, s.alerts, s.authorizeReader, s.queryLog, stock, cfg.Version, log.With("part", "query")); err != nil {
		return nil, err
	}
	s.Ingest = receiver.New(cfg.Ingest, s.Ledger, s.Metrics, log.With("part", "receiver"))
	s.Authority, err = ca.Open(ca.Config{
		Dir: filepath.Join(cfg.State, "authority"), Names: cfg.Names, Local: cfg.Local, Cluster: cfg.Cluster, CertificateLife: cfg.Life, LiveBoot: s.Ingest.LiveBoot,
	}, s.Ledger, log.With("part", "ca"))
	if err != nil {
		return nil, err
	}
	s.registerCollectors()
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
		u, err := replicate.Open(ctx, c, s.Ledger, s.log.With("part", "upstream"))
		if err != nil {
			return err
		}
		s.upstreams = append(s.upstreams, u)
	}
	return nil
}

// Close closes the ledger, and lets go of the state. Run has to have returned.
func (s *Server) Close() error {
	s.cancel()
	s.backupMu.Lock()
	defer s.backupMu.Unlock()
	var err error
	if s.Metrics != nil {
		err = s.Metrics.Close()
	}
	if s.Ledger != nil {
		err = errors.Join(err, s.Ledger.Close())
	}
	return errors.Join(err, s.queryLog.Close(), s.lock.Close())
}

// Reload reads the files of rules again, and those of the headers of receivers. After
// an error those before stay.
func (s *Server) Reload() error { return errors.Join(s.alerts.Reload(), s.remote.Reload()) }

// Run books what comes in, folds, forgets what is old, evaluates rules, and tells
// the servers above, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Ingest.Run(ctx) })
	g.Go(func() error { return s.Ledger.Run(ctx) })
	if s.Meters != nil {
		g.Go(func() error { return s.Meters.Run(ctx) })
	}
	g.Go(func() error { return s.Metrics.Run(ctx) })
	g.Go(func() error { return s.recordStates(ctx) })
	g.Go(func() error { return s.alerts.Run(ctx) })
	g.Go(func() error { return s.remote.Run(ctx) })
	for _, u := range s.upstreams {
		g.Go(func() error { return u.Run(ctx) })
	}
	return g.Wait()
}

// Handler answers agents and people: below /v1/ and /api/v1/, /healthz and /metrics,
// and the dashboard at /.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	enroll := limitReadTime(s.Authority.Handler())
	mux.Handle("/v1/enroll", enroll)
	mux.Handle("/v1/renew", enroll)
	batches := s.Ingest.Handler(s.identifyAgent)
	mux.Handle("/v1/batches", batches)
	mux.Handle("/v1/lost", batches)
	below := replicate.NewReceiver(s.Ledger, s.identifySource, s.log.With("part", "states")).Handler()
	mux.Handle("/v1/states", below)
	mux.Handle("/v1/states/mark", below)
	mux.Handle("/", s.QueryHandler())
	return api.Guard(mux)
}

// enrollTimeout is how long the claim of a machine that enrolls may take to arrive: it
// is of one or two packets, and anybody may send one.
const enrollTimeout = 10 * time.Second

// limitReadTime gives requests little time to arrive.
func limitReadTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(enrollTimeout)) // a writer without one is a test's
		h.ServeHTTP(w, r)
	})
}

// QueryHandler answers people only: the dashboard at /, and what it and others ask.
func (s *Server) QueryHandler() http.Handler {
	mux := http.NewServeMux()
	shown := web.New(false)
	shown.Mount(mux)
	mux.Handle("/metrics", api.TextHandler(exposition.ContentType, s.serverMetrics, s.authorizeScope, s.log.With("part", "metrics")))
	mux.Handle("/api/v1/", s.prom)
	mux.Handle("/api/v1/write", s.remoteWrite)
	questions := api.New(s.Ledger, liveProvider{s}, jobProvider{s}, s.authorizeScope, time.Now, s.log.With("part", "api"))
	for _, path := range []string{"/v1/", "/docs", "/docs/", "/openapi.json", "/healthz"} {
		mux.Handle(path, questions)
	}
	mux.Handle("/", shown.NotFoundHandler(questions))
	return api.Guard(mux)
}

// AdminHandler answers those who may use the state directory, on a socket in it.
func (s *Server) AdminHandler() http.Handler {
	return api.Admin(s.Authority.Tokens(), nodeRevoker{s}, s, time.Now, s.log.With("part", "admin"))
}

// identifyPeer says which agent or server a request comes from. The error of one who
// shows nothing that says so has no kind, which are for those who are known.
func (s *Server) identifyPeer(r *http.Request) (token.Principal, error) {
	p, err := s.Authority.Identify(r)
	if ca.IsUnidentified(err) {
		err = fault.WithHint(errors.New(err.Error()), fault.Hint(err))
	}
	return p, err
}

// identifyAgent says which node a request comes from.
func (s *Server) identifyAgent(r *http.Request) (string, error) {
	p, err := s.identifyPeer(r)
	switch {
	case err != nil:
		return "", err
	case p.Role != registry.Agent:
		return "", fault.WithHint(fmt.Errorf("only agents send batches: %w", fault.ErrDenied), "enroll with a token of the role agent")
	}
	return p.Node, s.restoreNode(r.Context(), p)
}

// restoreNode makes a node known that has a certificate of this server and yet is
// not in the ledger: that is an older copy, put back. Otherwise what the node
// holds could never be booked.
func (s *Server) restoreNode(ctx context.Context, p token.Principal) error {
	if _, ok := s.knownNodes.Load(p.Node); ok {
		return nil
	}
	_, err := s.Ledger.Node(ctx, p.Node)
	if errors.Is(err, fault.ErrNotFound) {
		now := time.Now().UTC()
		s.log.Warn("a node of this server is not in its ledger: it is taken up again", "node", p.Node)
		err = s.Ledger.PutNode(ctx, registry.Node{ID: p.Node, Cluster: p.Cluster, Name: p.Node, At: now})
		if err == nil {
			err = s.Ledger.Audit(ctx, registry.Audit{At: now, Actor: p.Node, Action: "node.recall", Object: p.Node,
				Detail: "it has a certificate, and the ledger did not know it"})
		}
	}
	if err != nil {
		return fmt.Errorf("node %s is not taken up: %w: %w", p.Node, err, fault.ErrUnavailable) // it is known, and may try again
	}
	s.knownNodes.Store(p.Node, true)
	return nil
}

// identifySource says which server a request comes from.
func (s *Server) identifySource(r *http.Request) (replica.Source, error) {
	p, err := s.identifyPeer(r)
	switch {
	case err != nil:
		return replica.Source{}, err
	case p.Role != registry.Upstream:
		return replica.Source{}, fault.WithHint(errors.Join(errors.New("only servers send states"), fault.ErrDenied), "enroll with a token of the role upstream")
	}
	return replica.Source{ID: p.Node, Cluster: p.Cluster}, nil
}

// authorizeScope says what the one who asks may see.
func (s *Server) authorizeScope(r *http.Request) (query.Scope, error) {
	scope, _, err := s.authorizeReader(r)
	return scope, err
}

// authorizeReader says what the one who asks may see, and who he is: the id of his token, or
// "local" for the machine's own people.
func (s *Server) authorizeReader(r *http.Request) (query.Scope, string, error) {
	p, err := s.Authority.Identify(r)
	switch {
	case err != nil:
		return query.Scope{}, "", err
	case p.Role != registry.Viewer:
		return query.Scope{}, "", fault.WithHint(fmt.Errorf("role %s does not read: %w", p.Role, fault.ErrDenied), "ask with a token of the role viewer")
	}
	who := cmp.Or(p.Token, "local")
	if p.Cluster == "" {
		return query.Scope{All: true}, who, nil
	}
	return query.Scope{Clusters: []string{p.Cluster}}, who, nil
}

// authorizeWriter says into which cluster the one who asks may write series.
func (s *Server) authorizeWriter(r *http.Request) (string, error) {
	p, err := s.Authority.Identify(r)
	if err == nil && (p.Role != registry.Writer || p.Cluster == "") {
		err = fault.WithHint(fmt.Errorf("role %s does not write series: %w", p.Role, fault.ErrDenied), "ask with a token of mete token create --role writer --cluster NAME")
	}
	return p.Cluster, err
}

// A Transport is the way to a server in the same process, for one node.
type Transport struct {
	server *Server
	node   string
}

// Transport returns the way for a node of this machine.
func (s *Server) Transport(node string) Transport { return Transport{s, node} }

// Offer implements sender.Server.
func (w Transport) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	if err := w.server.Authority.CheckAllowed(ctx, w.node); err != nil {
		return batch.Reply{}, err
	}
	return w.server.Ingest.Offer(ctx, w.node, c, sent)
}

// Reads implements sender.Server.
func (w Transport) Reads(context.Context) (wire.Format, error) { return wire.LatestFormat(), nil }

// Lost implements sender.Server.
func (w Transport) Lost(ctx context.Context, l batch.Loss) (batch.Reply, error) {
	if err := w.server.Authority.CheckAllowed(ctx, w.node); err != nil {
		return batch.Reply{}, err
	}
	return w.server.Ingest.ReportLoss(ctx, w.node, l)
}
