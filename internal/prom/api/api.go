// Package api serves Prometheus's HTTP API, /api/v1, over a server's metrics with
// Prometheus's own packages, so that clients of Prometheus can query mete, and /federate, which
// a Prometheus can scrape.
//
// The caller's scope travels in the context and is enforced by the storage layer;
// queries are not rewritten.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	v1 "github.com/prometheus/prometheus/web/api/v1"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/querylimit"
	metrics "mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/x/fairqueue"
	"mete.dev/mete/internal/x/httpx"
)

// Rules lists the evaluated rules and the Alertmanagers that receive alerts.
type Rules interface {
	RuleGroups() []*rules.Group
	AlertingRules() []*rules.AlertingRule
	Alertmanagers() []*url.URL
	DroppedAlertmanagers() []*url.URL
}

// Identify returns the caller's scope and a log-safe name.
type Identify func(*http.Request) (query.Scope, string, error)

// An API answers queries.
type API struct {
	handler  http.Handler
	engine   *tieredEngine
	limits   limits
	small    *fairqueue.Queue
	large    *fairqueue.Queue
	memory   *memoryWatch
	bodies   *httpx.Bodies
	queryLog *Log
	counts   counts
	identify Identify
	parser   parser.Parser
	log      *slog.Logger
}

// New returns the API over a store. rs, queryLog and reg may be nil: without rs there are
// no rules, without queryLog no query log.
func New(cfg Config, store *metrics.Store, rs Rules, identify Identify, queryLog *Log, reg *prometheus.Registry, version string, log *slog.Logger) (*API, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if rs == nil {
		rs = noRules{}
	}
	a := newAPI(cfg, identify, queryLog, log)
	began := time.Now()
	api := v1.NewAPI(a.engine, scopedQueryable{store.Queryable()}, nil, nil, noExemplars{},
		func(context.Context) v1.ScrapePoolsRetriever { return noTargets{} },
		func(context.Context) v1.TargetRetriever { return noTargets{} },
		func(context.Context) v1.AlertmanagerRetriever { return rs },
		func() config.Config { return config.DefaultConfig },
		map[string]string{}, v1.GlobalURLOptions{}, func(f http.HandlerFunc) http.HandlerFunc { return f },
		dbAdmin{store.DB()}, "", false, false, 0, log, func(context.Context) v1.RulesRetriever { return rs },
		0, a.limits.large.slots, 1<<20, false, nil,
		func() (v1.RuntimeInfo, error) {
			return v1.RuntimeInfo{StartTime: began, StorageRetention: store.Retention().String(), ReloadConfigSuccess: true}, nil
		},
		&v1.PrometheusVersion{Version: version}, nil, nil, reg, reg, nil,
		false, nil, false, false, false, false, cfg.Lookback, false, false, statusOf, nil, v1.OpenAPIOptions{}, a.parser)
	router := route.New()
	api.Register(router.WithPrefix("/api/v1"))
	router.Get(federatePath, a.federate(scopedQueryable{store.Queryable()}))
	a.handler = router
	return a, nil
}

// newAPI returns an API with its limits and engines, without a handler.
func newAPI(cfg Config, identify Identify, queryLog *Log, log *slog.Logger) *API {
	l := cfg.limits()
	a := &API{limits: l, small: fairqueue.New(l.small.slots, l.maxWaiting), large: fairqueue.New(l.large.slots, l.maxWaiting),
		memory: &memoryWatch{memory: l.Memory}, bodies: httpx.NewBodies(maxBodies, maxReaderBodies), queryLog: queryLog, identify: identify, parser: parser.NewParser(parser.Options{}), log: log}
	a.engine = &tieredEngine{a, a.newEngine(l.small.samples, l.smallTimeout), a.newEngine(l.large.samples, l.Timeout)}
	return a
}

func (a *API) newEngine(samples int, timeout time.Duration) promql.QueryEngine {
	return querylimit.Engine(promql.NewEngine(a.limits.engineOpts(samples, timeout, a.parser, a.log)), timeout)
}

// statusOf overrides the status code of Prometheus's API for timeouts.
func statusOf[T any](_ T, err error) (int, bool) {
	var slow promql.ErrQueryTimeout
	return http.StatusServiceUnavailable, errors.As(err, &slow)
}

// Bytes of the body of a request, of the bodies that are held at once, and of the bodies of one reader.
const (
	maxBody         = 1 << 20
	maxBodies       = 32 << 20
	maxReaderBodies = maxBodies / 4
)

// scopedPaths are the paths below /api/v1 whose answers respect the caller's scope.
// globalPaths ignore the scope and need Scope.All.
var (
	scopedPaths = []string{"query", "query_range", "query_exemplars", "format_query", "parse_query", "labels", "label", "series",
		"metadata", "rules", "alerts", "targets", "read", "status/buildinfo", "status/runtimeinfo", federatePath}
	globalPaths = []string{"alertmanagers", "status/tsdb", "status/flags", "status/config", "status/walreplay"}
)

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/")
	isIn := func(list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s, reader, err := a.identify(r)
	switch {
	case err != nil:
		refuse(w, err)
		return
	case isIn(scopedPaths), isIn(globalPaths) && s.All:
	default:
		http.NotFound(w, r)
		return
	}
	switch {
	case path == "metadata":
		metadata(w, r)
		return
	case path == federatePath && httpx.CheckMethod(w, r, http.MethodGet) != nil:
		reject(w, http.StatusMethodNotAllowed, "bad_data", "scrapes use GET")
		return
	}
	r = r.Clone(WithScope(r.Context(), s))
	r.Header.Del("Origin") // Prometheus's API panics on it without a CORS configuration
	switch {
	case !s.All && r.Method == http.MethodGet && (path == "rules" || path == "alerts"): // other methods have no such answer
		serveVisible(a.handler, s, w, r)
	case isIn(queuedPaths):
		release, ok := a.bodies.Take(r, reader, maxBody)
		if !ok {
			httpx.SetRetryAfter(w, time.Second)
			reject(w, http.StatusServiceUnavailable, "timeout", "requests of this reader, or of all, have too many bytes at once: send this again later, or with its Content-Length")
			return
		}
		defer release()
		a.serveQueued(w, r, reader, path)
	default:
		a.handler.ServeHTTP(w, r)
	}
}

// queuedPaths are the paths that read the database or parse long texts.
var queuedPaths = []string{"query", "query_range", "query_exemplars", "format_query", "parse_query", "labels", "label", "series", "read", "status/tsdb", federatePath}

// serveQueued waits for a turn and answers the request.
func (a *API) serveQueued(to http.ResponseWriter, r *http.Request, reader, path string) {
	began := time.Now()
	remoteRead := path == "read"
	t := &admission{api: a, reader: reader, large: remoteRead, remoteRead: remoteRead}
	w := &statusWriter{to, http.StatusOK, t, began.Add(a.limits.Timeout + time.Minute)}
	defer func() { a.counts.count(w.code, t, time.Since(began)) }()
	check := a.checkForm
	if remoteRead {
		check = readRequest
	}
	if err := check(r); err != nil {
		reject(w, http.StatusBadRequest, "bad_data", err.Error())
		return
	}
	t.limit, _ = strconv.Atoi(r.Form.Get("limit")) // the handler reports an invalid limit
	ip, _, _ := net.SplitHostPort(r.RemoteAddr)    // "" if it is invalid
	t.httpRequest = map[string]string{"clientIP": ip, "method": r.Method, "path": r.URL.Path}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), admissionKey{}, t), a.limits.Timeout)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(w.end) // only writers of tests do not support it
	if err := t.acquire(ctx); err != nil {
		httpx.SetRetryAfter(w, 5*time.Second)
		reject(w, http.StatusServiceUnavailable, "timeout", err.Error())
		return
	}
	defer t.release()
	if path != "query" && path != "query_range" { // the engine's queries are watched one by one
		var end func()
		ctx, end = a.memory.begin(ctx, t)
		defer end()
	}
	a.handler.ServeHTTP(w, r.WithContext(ctx))
	if took := time.Since(began); a.limits.Slow > 0 && took >= a.limits.Slow {
		asked := cmp.Or(r.Form.Get("query"), strings.Join(r.Form["match[]"], " "))
		a.log.Warn("slow query", "path", r.URL.Path, "query", asked[:min(len(asked), 1000)], "start", r.Form.Get("start"), "end", r.Form.Get("end"),
			"step", r.Form.Get("step"), "reader", reader, "took", took.Round(time.Millisecond), "waited", t.waited.Round(time.Millisecond))
	}
}

// checkForm parses the form of a request and rejects queries that are too long or too
// complex.
func (a *API) checkForm(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return fmt.Errorf("cannot parse the parameters: %w", err)
	}
	// Parse the multipart form here, because the handler's FormValue would add it unchecked.
	if err := r.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return fmt.Errorf("cannot parse the parameters: %w", err)
	}
	for _, name := range []string{"query", "match[]"} {
		for _, text := range r.Form[name] {
			if len(text) > maxQueryBytes {
				return fmt.Errorf("%s has %d bytes: at most %d", name, len(text), maxQueryBytes)
			}
			if name == "query" {
				if err := a.checkQuery(text); err != nil {
					return fmt.Errorf("invalid parameter \"query\": %w", err)
				}
			}
		}
	}
	return nil
}

// checkQuery rejects a query that is too complex. It ignores syntax errors, which
// Prometheus's handler reports.
func (a *API) checkQuery(text string) error {
	if err := checkOperators(text); err != nil {
		return err
	}
	n, err := a.parser.ParseExpr(text)
	if err != nil {
		return nil
	}
	return checkGrowth(n, text)
}

// noRules implements Rules without any rule.
type noRules struct{}

func (noRules) RuleGroups() []*rules.Group           { return nil }
func (noRules) AlertingRules() []*rules.AlertingRule { return nil }
func (noRules) Alertmanagers() []*url.URL            { return nil }
func (noRules) DroppedAlertmanagers() []*url.URL     { return nil }

// noTargets implements the target retrievers of a server that scrapes nothing.
type noTargets struct{}

func (noTargets) TargetsActive() map[string][]*scrape.Target  { return nil }
func (noTargets) TargetsDropped() map[string][]*scrape.Target { return nil }
func (noTargets) TargetsDroppedCounts() map[string]int        { return nil }
func (noTargets) ScrapePools() []string                       { return nil }
func (noTargets) ScrapePoolConfig(string) (*config.ScrapeConfig, error) {
	return nil, errors.New("this server scrapes nothing")
}

// noExemplars is an exemplar storage without exemplars.
type noExemplars struct{}

func (n noExemplars) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) { return n, nil }
func (noExemplars) Select(int64, int64, ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	return []exemplar.QueryResult{}, nil
}

// dbAdmin shows the state of a database and cannot change it.
type dbAdmin struct{ *tsdb.DB }

func (a dbAdmin) Stats(by string, limit int) (*tsdb.Stats, error) {
	return a.Head().Stats(by, limit), nil
}
func (a dbAdmin) WALReplayStatus() (tsdb.WALReplayStatus, error) { return tsdb.WALReplayStatus{}, nil }
func (a dbAdmin) BlockMetas() ([]tsdb.BlockMeta, error)          { return a.DB.BlockMetas(), nil }
