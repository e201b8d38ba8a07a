// Package server combines the parts of a server: it receives batches, books them in the
// ledger and answers queries.
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
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/identity/slurm"
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
	"mete.dev/mete/internal/server/meterreader"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/web"
)

// A Config configures a Server.
type Config struct {
	// State is the directory of the server's data, including the ledger unless Database
	// is set.
	State string
	// Database is a path or a URL, see [ledger.Open]. "" means ledger.db in State.
	Database string
	// Names are additional host names and addresses of the server for its certificate.
	Names []string
	// Cluster is the cluster of nodes that enroll without a token.
	Cluster string
	// Life is the validity of machines' certificates; 0 means the default of [ca.Config].
	Life time.Duration
	// Local makes the server accept tokens without TLS from this machine. Without a token it
	// answers its own user and root, on the socket in State.
	Local    bool
	Ledger   ledger.Config
	Receiver receiver.Config
	// Metrics configures the time series database; an empty Dir means metrics in State.
	// Query limits PromQL queries; a Memory of 0 means a quarter of the memory available
	// to the process.
	Metrics tsdb.Config
	Query   promapi.Config
	// Alerts configures rules and alert receivers; an empty State means alerts.json, and an empty
	// Silences silences.json, in
	// State. Caps are the power caps that rules can refer to.
	Alerts alert.Config
	Caps   []rule.Cap
	// Version is the version of the program.
	Version string
	// Upstreams are the servers above, to which this one replicates its rows. Open sets
	// an empty Dir.
	Upstreams []replicate.Config
	// Meters are the external meters that the server reads.
	Meters []external.Spec
	// Kube is the Kubernetes cluster whose pods are named; without a Cluster there is none.
	Kube kube.Config
	// Slurm is the Slurm cluster whose jobs are named; without a Cluster there is none.
	Slurm slurm.Config
	// Remote are the remote-write receivers of all samples.
	Remote []remotewrite.Receiver
}

// Default returns the default configuration, without State.
func Default() Config {
	return Config{Ledger: ledger.Default(), Receiver: receiver.Default(), Metrics: tsdb.Default(), Query: promapi.Default(), Alerts: alert.Default()}
}

// Validate checks the configuration.
func (c Config) Validate() error {
	return errors.Join(c.Ledger.Validate(), c.Receiver.Validate(), c.Metrics.Validate(), c.Query.Validate(), c.Alerts.Validate())
}

// A Server receives batches, books them in a ledger and answers queries.
type Server struct {
	Ledger    *ledger.Ledger
	Authority *ca.Authority
	Receiver  *receiver.Receiver
	Meters    *meterreader.Collector // nil without meters
	Pods      *kube.Watcher          // nil without a Kubernetes cluster
	Slurm     *slurm.Watcher         // nil without a Slurm cluster
	placedRev int64                  // up to which the series have the names of pods
	Metrics   *tsdb.Store

	directives  *directiveSource
	prom        *promapi.API
	queryLog    *promapi.Log // nil without a query log
	alerts      *alert.Alerts
	remote      *remotewrite.Writer
	remoteWrite *remotewrite.Handler
	upstreams   []*replicate.Sender
	registry    *prometheus.Registry // metrics that need no query of the ledger
	lock        *os.File             // of the state directory
	backupMu    sync.Mutex           // held during a backup
	ctx         context.Context      // ends on Close
	cancel      context.CancelFunc

	url        atomic.Pointer[string] // see SetURL
	cfg        Config
	knownNodes sync.Map // ids of nodes known to be in the ledger
	log        *slog.Logger
}

// Open opens or creates the server's data. Run starts the work; the caller must call
// Close. If another server has the state open, Open changes nothing and returns an error
// that wraps fault.ErrConflict.
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
			err = fault.WithHint(err, "check that the database runs and admits the user of --database")
		}
		return nil, err
	}
	s.directives = newDirectives(s.Ledger, log.With("part", "directives"))
	if err := s.openUpstreams(ctx); err != nil {
		return nil, err
	}
	if len(cfg.Meters) > 0 {
		if s.Meters, err = meterreader.New(cfg.Meters, s.Ledger, log.With("part", "meters")); err != nil {
			return nil, err
		}
	}
	if cfg.Kube.Cluster != "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		cfg.Kube.Holder = host + ":" + cfg.State
		if s.Pods, err = kube.New(cfg.Kube, s.Ledger, log.With("part", "kube")); err != nil {
			return nil, err
		}
	}
	if cfg.Slurm.Cluster != "" {
		if s.Slurm, err = slurm.New(cfg.Slurm, s.Ledger, log.With("part", "slurm")); err != nil {
			return nil, err
		}
	}
	if s.Pods != nil || s.Slurm != nil {
		if _, s.placedRev, err = s.Ledger.Placed(ctx, -1); err != nil {
			return nil, err
		}
	}
	if cfg.Metrics.Dir == "" {
		cfg.Metrics.Dir = filepath.Join(cfg.State, "metrics")
	}
	stock := prometheus.NewRegistry() // metrics of Prometheus's packages, not exposed at /metrics
	if s.Metrics, err = tsdb.Open(cfg.Metrics, s.Ledger, stock, log.With("part", "tsdb")); err != nil {
		return nil, err
	}
	if s.remote, err = remotewrite.NewWriter(cfg.Remote, s.Metrics.DB(), log.With("part", "remote")); err != nil {
		return nil, err
	}
	s.remoteWrite = remotewrite.NewHandler(s.Metrics.Samples(), s.authorizeWriter, log.With("part", "remote"))
	if cfg.Alerts.State == "" {
		cfg.Alerts.State = filepath.Join(cfg.State, "alerts.json")
	}
	if cfg.Alerts.Silences == "" {
		cfg.Alerts.Silences = filepath.Join(cfg.State, "silences.json")
	}
	if cfg.Query.Memory == 0 {
		if cfg.Query.Memory, err = queryMemory(); err != nil {
			log.Warn("cannot read the memory limit; queries get the memory of a small machine", "err", err)
		}
	}
	if s.queryLog, err = promapi.OpenLog(cfg.Query.Log, log.With("part", "query")); err != nil {
		return nil, err
	}
	// Rules have an engine of their own so that they do not wait for queries.
	if s.alerts, err = alert.Open(cfg.Alerts, promapi.Engine(cfg.Query, s.queryLog, log.With("part", "rules")), s.Metrics, stock, log.With("part", "alerts")); err != nil {
		return nil, err
	}
	if s.prom, err = promapi.New(cfg.Query, s.Metrics, s.alerts, s.authorizeReader, s.queryLog, stock, cfg.Version, log.With("part", "query")); err != nil {
		return nil, err
	}
	s.Receiver = receiver.New(cfg.Receiver, s.Ledger, s.Metrics, log.With("part", "receiver"))
	boots, err := s.Ledger.LatestBoots(ctx)
	if err != nil {
		return nil, err
	}
	s.Receiver.SeedBoots(boots)
	s.Authority, err = ca.Open(ca.Config{
		Dir: filepath.Join(cfg.State, "authority"), Names: cfg.Names, Local: cfg.Local, Cluster: cfg.Cluster, CertificateLife: cfg.Life, LiveBoot: s.Receiver.LiveBoot,
	}, s.Ledger, log.With("part", "ca"))
	if err != nil {
		return nil, err
	}
	s.registerCollectors()
	return s, nil
}

// openUpstreams opens a replication sender for each server above, each with its own
// identity.
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

// Close closes the ledger and releases the state directory. Run must have returned.
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

// Reload reads the rule files and the header files of remote-write receivers again. After
// an error the previous ones stay in use.
func (s *Server) Reload() error { return errors.Join(s.alerts.Reload(), s.remote.Reload()) }

// Run runs the background work until ctx ends: booking, folding, retention, rules, external
// meters, pods of Kubernetes, jobs of Slurm, remote write and replication.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Receiver.Run(ctx) })
	g.Go(func() error { return s.Ledger.Run(ctx) })
	g.Go(func() error { return tuneCollector(ctx) })
	g.Go(func() error { return s.directives.run(ctx) })
	if s.Meters != nil {
		g.Go(func() error { return s.Meters.Run(ctx) })
	}
	if s.Pods != nil {
		g.Go(func() error { return s.Pods.Run(ctx) })
	}
	if s.Slurm != nil {
		g.Go(func() error { return s.Slurm.Run(ctx) })
	}
	if s.Pods != nil || s.Slurm != nil {
		g.Go(func() error { return s.followPlaced(ctx) })
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

// Handler serves agents, servers below and readers: the APIs below /v1/ and /api/v1/,
// /federate, /healthz, /metrics, and the dashboard at /.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	enroll := limitReadTime(s.Authority.Handler())
	mux.Handle("/v1/enroll", enroll)
	mux.Handle("/v1/renew", enroll)
	batches := s.Receiver.Handler(s.identifyAgent)
	mux.Handle("/v1/batches", batches)
	mux.Handle("/v1/lost", batches)
	directives := s.directives.handler(s.identifyAgent)
	mux.Handle("/v1/directives", directives)
	mux.Handle("/v1/directives/", directives)
	replication := replicate.NewReceiver(s.Ledger, s.identifySource, s.log.With("part", "replication")).Handler()
	mux.Handle("/v1/states", replication)
	mux.Handle("/v1/states/mark", replication)
	mux.Handle("/", s.QueryHandler())
	return api.Guard(mux, isPage)
}

// enrollTimeout limits reading an enrollment request: it fits into two packets, and any
// client can send one.
const enrollTimeout = 10 * time.Second

// limitReadTime sets the read deadline of requests to enrollTimeout.
func limitReadTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(enrollTimeout)) // only the writers of tests have no deadline
		h.ServeHTTP(w, r)
	})
}

// QueryHandler serves readers only: the dashboard, the query APIs and /metrics.
func (s *Server) QueryHandler() http.Handler {
	mux := http.NewServeMux()
	pages := web.New(false)
	pages.Mount(mux)
	mux.Handle("/metrics", api.Compress(api.TextHandler(exposition.ContentType, s.serverMetrics, s.Authorize, s.log.With("part", "metrics"))))
	mux.Handle("/api/v1/", s.prom)
	mux.Handle("/api/v1/write", s.remoteWrite)
	mux.Handle("/federate", api.Compress(s.prom))
	mux.Handle("/v1/page-token", limitReadTime(s.Authority.PageHandler()))
	queryAPI := api.Compress(api.New(s.Ledger, liveProvider{s}, selfProvider{s}, s.Authorize, time.Now, s.log.With("part", "api")))
	for _, path := range []string{"/v1/", "/docs", "/docs/", "/openapi.json", "/healthz"} {
		mux.Handle(path, queryAPI)
	}
	mux.Handle("/", pages.NotFoundHandler(queryAPI))
	return api.Guard(mux, isPage)
}

// isPage reports whether a path is that of a page, to which other sites may link.
func isPage(path string) bool { return web.IsPage(path) || path == api.DocsPath }

// AdminHandler serves the user of the server, on the socket of [ListenAdmin]: administration,
// and everything that h serves, without a credential.
func (s *Server) AdminHandler(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	admin := api.Admin(api.Administration{Tokens: s.Authority.Tokens(), Nodes: nodeRevoker{s}, Backups: s, Pages: s, Silences: silencer{s}, Audits: s.Ledger}, time.Now, s.log.With("part", "admin"))
	for _, path := range []string{"/v1/tokens", "/v1/tokens/{id}", "/v1/nodes/{node}", "/v1/backup", "/v1/page-links", "/v1/silences", "/v1/silences/{id}", "/v1/audit"} {
		mux.Handle(path, admin)
	}
	mux.Handle("/", ca.TrustLocal(h))
	return mux
}

// SetURL sets the address at which the page is served, for [Server.PageLink].
func (s *Server) SetURL(url string) { s.url.Store(&url) }

// PageLink returns the URL of the page with a code that opens it in one browser within an hour.
// The code is in the fragment, which browsers do not send.
func (s *Server) PageLink() (string, error) {
	url := s.url.Load()
	switch {
	case !s.cfg.Local:
		return "", fault.WithHint(fmt.Errorf("a link to the page of a server with TLS: %w", fault.ErrUnsupported), "sign in there with a token: mete token create --role viewer")
	case url == nil:
		return "", fmt.Errorf("the page is not served yet: %w", fault.ErrUnavailable)
	}
	return *url + "/#code=" + s.Authority.NewPageCode(), nil
}

// identify returns the client of a request, whose connection may stay then.
func (s *Server) identify(r *http.Request) (token.Principal, error) {
	p, err := s.Authority.Identify(r)
	if err == nil {
		keepConnection(r, cmp.Or(p.Node, p.Token, "local"), p.Node != "" && p.Token == "")
	}
	return p, err
}

// identifyPeer returns the agent or server that sent a request. The error for a request
// without credentials wraps no kind of fault: kinds are for authenticated callers.
func (s *Server) identifyPeer(r *http.Request) (token.Principal, error) {
	p, err := s.identify(r)
	if ca.IsUnidentified(err) {
		err = fault.WithHint(errors.New(err.Error()), fault.Hint(err))
	}
	return p, err
}

// identifyAgent returns the node that sent a request.
func (s *Server) identifyAgent(r *http.Request) (node, cluster string, err error) {
	p, err := s.identifyPeer(r)
	switch {
	case err != nil:
		return "", "", err
	case p.Role != registry.Agent:
		return "", "", fault.WithHint(fmt.Errorf("only agents send batches: %w", fault.ErrDenied), "enroll with a token of the role agent")
	}
	return p.Node, p.Cluster, s.restoreNode(r.Context(), p)
}

// restoreNode adds a node with a valid certificate to the ledger if the ledger lacks it,
// because it was restored from a backup older than the node. Otherwise the node's batches
// could never be booked.
func (s *Server) restoreNode(ctx context.Context, p token.Principal) error {
	if _, ok := s.knownNodes.Load(p.Node); ok {
		return nil
	}
	_, err := s.Ledger.Node(ctx, p.Node)
	if errors.Is(err, fault.ErrNotFound) {
		now := time.Now().UTC()
		s.log.Warn("ledger lacks a node with a valid certificate; adding it again", "node", p.Node)
		err = s.Ledger.PutNode(ctx, ca.Recall(p, now))
		if err == nil {
			err = s.Ledger.Audit(ctx, registry.Audit{At: now, Actor: p.Node, Action: "node.recall", Object: p.Node,
				Detail: "valid certificate, but not in the ledger"})
		}
	}
	if err != nil {
		return fmt.Errorf("add node %s to the ledger: %w: %w", p.Node, err, fault.ErrUnavailable) // the node may retry
	}
	s.knownNodes.Store(p.Node, true)
	return nil
}

// identifySource returns the server below that sent a request.
func (s *Server) identifySource(r *http.Request) (replica.Source, error) {
	p, err := s.identifyPeer(r)
	switch {
	case err != nil:
		return replica.Source{}, err
	case p.Role != registry.Upstream:
		return replica.Source{}, fault.WithHint(errors.Join(errors.New("only servers replicate states"), fault.ErrDenied), "enroll with a token of the role upstream")
	}
	return replica.Source{ID: p.Node, Cluster: p.Cluster}, nil
}

// Authorize returns the scope of the caller.
func (s *Server) Authorize(r *http.Request) (query.Scope, error) {
	scope, _, err := s.authorizeReader(r)
	return scope, err
}

// authorizeReader returns the scope of the caller and a name for logs: the id of the token,
// or "local" for the server's user and for browsers.
func (s *Server) authorizeReader(r *http.Request) (query.Scope, string, error) {
	p, err := s.identify(r)
	switch {
	case err != nil:
		return query.Scope{}, "", err
	case p.Role != registry.Viewer:
		return query.Scope{}, "", fault.WithHint(fmt.Errorf("role %s cannot read: %w", p.Role, fault.ErrDenied), "use a token of the role viewer")
	}
	who := cmp.Or(p.Token, "local")
	if p.Cluster == "" {
		return query.Scope{All: true}, who, nil
	}
	return query.Scope{Clusters: []string{p.Cluster}}, who, nil
}

// authorizeWriter returns the cluster to which the caller may write series.
func (s *Server) authorizeWriter(r *http.Request) (string, error) {
	p, err := s.identify(r)
	if err == nil && (p.Role != registry.Writer || p.Cluster == "") {
		err = fault.WithHint(fmt.Errorf("role %s cannot write series: %w", p.Role, fault.ErrDenied), "use a token of mete token create --role writer --cluster NAME")
	}
	return p.Cluster, err
}

// A Transport is a sender.Server and a follower.Server in the same process, for one node.
type Transport struct {
	server *Server
	node   string
}

// Transport returns the transport for a node.
func (s *Server) Transport(node string) Transport { return Transport{s, node} }

// Offer implements sender.Server.
func (t Transport) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	if err := t.server.Authority.CheckAllowed(ctx, t.node); err != nil {
		return batch.Reply{}, err
	}
	return t.server.Receiver.Offer(ctx, t.node, c, sent)
}

// Reads implements sender.Server.
func (t Transport) Reads(context.Context) (wire.Format, error) { return wire.LatestFormat(), nil }

// Lost implements sender.Server.
func (t Transport) Lost(ctx context.Context, l batch.Loss) (batch.Reply, error) {
	if err := t.server.Authority.CheckAllowed(ctx, t.node); err != nil {
		return batch.Reply{}, err
	}
	return t.server.Receiver.ReportLoss(ctx, t.node, l)
}
