// Package api answers Prometheus's HTTP API, /api/v1, over a server's metrics,
// by Prometheus's own packages: so that what asks a Prometheus can ask mete.
//
// What who asks may see is a scope in the context of the query, which the
// storage holds to: no query is rewritten.
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
	"mete.dev/mete/internal/store/subquery"
	metrics "mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/x/fairqueue"
)

// Rules knows the rules that are evaluated, and which Alertmanagers are told.
type Rules interface {
	RuleGroups() []*rules.Group
	AlertingRules() []*rules.AlertingRule
	Alertmanagers() []*url.URL
	DroppedAlertmanagers() []*url.URL
}

// Who says what who asks may see, and what he is called in logs: no secret.
type Who func(*http.Request) (query.Scope, string, error)

// An API answers queries.
type API struct {
	handler http.Handler
	engines *engines
	limits  limits
	small   *fairqueue.Queue
	large   *fairqueue.Queue
	watch   *watch
	told    *Log
	counts  counts
	who     Who
	read    parser.Parser
	log     *slog.Logger
}

// New returns the API over a store. reg may be nil; without rs there are no rules, and
// without told no log of queries.
func New(cfg Config, store *metrics.Store, rs Rules, who Who, told *Log, reg *prometheus.Registry, version string, log *slog.Logger) (*API, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if rs == nil {
		rs = none{}
	}
	a := newAPI(cfg, who, told, log)
	began := time.Now()
	api := v1.NewAPI(a.engines, scoped{store.Queryable()}, nil, nil, plain{},
		func(context.Context) v1.ScrapePoolsRetriever { return nothing{} },
		func(context.Context) v1.TargetRetriever { return nothing{} },
		func(context.Context) v1.AlertmanagerRetriever { return rs },
		func() config.Config { return config.DefaultConfig },
		map[string]string{}, v1.GlobalURLOptions{}, func(f http.HandlerFunc) http.HandlerFunc { return f },
		admin{store.DB()}, "", false, false, 0, log, func(context.Context) v1.RulesRetriever { return rs },
		0, a.limits.large.slots, 1<<20, false, nil,
		func() (v1.RuntimeInfo, error) {
			return v1.RuntimeInfo{StartTime: began, StorageRetention: store.Retention().String(), ReloadConfigSuccess: true}, nil
		},
		&v1.PrometheusVersion{Version: version}, nil, nil, reg, reg, nil,
		false, nil, false, false, false, false, cfg.Lookback, false, false, status, nil, v1.OpenAPIOptions{}, a.read)
	router := route.New()
	api.Register(router.WithPrefix("/api/v1"))
	a.handler = router
	return a, nil
}

// newAPI returns what bounds queries, without what answers them.
func newAPI(cfg Config, who Who, told *Log, log *slog.Logger) *API {
	l := cfg.limits()
	a := &API{limits: l, small: fairqueue.New(l.small.slots, l.waiting), large: fairqueue.New(l.large.slots, l.waiting),
		watch: &watch{memory: l.Memory}, told: told, who: who, read: parser.NewParser(parser.Options{}), log: log}
	of := func(samples int, timeout time.Duration) promql.QueryEngine {
		return subquery.Engine(promql.NewEngine(l.engine(samples, timeout, a.read, log)))
	}
	a.engines = &engines{a, of(l.small.samples, l.try), of(l.large.samples, l.Timeout)}
	return a
}

// status is the status code of errors for which Prometheus's API has another one.
func status[T any](_ T, err error) (int, bool) {
	var slow promql.ErrQueryTimeout
	return http.StatusServiceUnavailable, errors.As(err, &slow)
}

// maxBody is how many bytes a request may have.
const maxBody = 1 << 20

// open are the paths below /api/v1 that are answered, and whole those that show all
// that there is, whoever asks.
var (
	open = []string{"query", "query_range", "query_exemplars", "format_query", "parse_query", "labels", "label", "series",
		"metadata", "rules", "alerts", "targets", "read", "status/buildinfo", "status/runtimeinfo"}
	whole = []string{"alertmanagers", "status/tsdb", "status/flags", "status/config", "status/walreplay"}
)

// ServeHTTP answers one question.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/")
	of := func(list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
	}
	// A body is a query, and no more.
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s, who, err := a.who(r)
	switch {
	case err != nil:
		refuse(w, err)
		return
	case of(open), of(whole) && s.All:
	default:
		http.NotFound(w, r)
		return
	}
	if path == "metadata" {
		metadata(w, r)
		return
	}
	r = r.Clone(Within(r.Context(), s))
	r.Header.Del("Origin") // with one, and no list of those that may read, Prometheus's API panics
	switch {
	case !s.All && (path == "rules" || path == "alerts"):
		narrow(a.handler, s, w, r)
	case of(reading):
		a.inTurn(w, r, who, path)
	default:
		a.handler.ServeHTTP(w, r)
	}
}

// reading are the paths that read the database, or texts that may be long.
var reading = []string{"query", "query_range", "query_exemplars", "format_query", "parse_query", "labels", "label", "series", "read", "status/tsdb"}

// inTurn answers what is asked when it is its turn.
func (a *API) inTurn(to http.ResponseWriter, r *http.Request, who, path string) {
	began := time.Now()
	reads := path == "read"
	t := &ticket{a: a, who: who, large: reads, reads: reads}
	w := &noting{to, http.StatusOK, t}
	defer func() { a.counts.count(w.code, t, time.Since(began)) }()
	arrive := a.short
	if reads {
		arrive = arrived
	}
	if err := arrive(r); err != nil {
		reject(w, http.StatusBadRequest, "bad_data", err.Error())
		return
	}
	t.limit, _ = strconv.Atoi(r.Form.Get("limit")) // the answer says where it is none
	ip, _, _ := net.SplitHostPort(r.RemoteAddr)    // "" where it is none
	t.asked = map[string]string{"clientIP": ip, "method": r.Method, "path": r.URL.Path}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), ticketKey{}, t), a.limits.Timeout)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(began.Add(a.limits.Timeout + time.Minute)) // a writer without one is a test's
	if err := t.enter(ctx); err != nil {
		w.Header().Set("Retry-After", "5")
		reject(w, http.StatusServiceUnavailable, "timeout", err.Error())
		return
	}
	defer t.leave()
	if reads {
		var end func()
		ctx, end = a.watch.begin(ctx, true)
		defer end()
	}
	a.handler.ServeHTTP(w, r.WithContext(ctx))
	if took := time.Since(began); a.limits.Slow > 0 && took >= a.limits.Slow {
		asked := cmp.Or(r.Form.Get("query"), strings.Join(r.Form["match[]"], " "))
		a.log.Warn("slow query", "path", r.URL.Path, "query", asked[:min(len(asked), 1000)], "start", r.Form.Get("start"), "end", r.Form.Get("end"),
			"step", r.Form.Get("step"), "reader", who, "took", took.Round(time.Millisecond), "waited", t.waited.Round(time.Millisecond))
	}
}

// short reads the form of a request, and reports a text in it that is too long, or would
// take more to look at than it may.
func (a *API) short(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return fmt.Errorf("the parameters cannot be read: %w", err)
	}
	// Whoever looks at the form later would add these to it.
	if err := r.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return fmt.Errorf("the parameters cannot be read: %w", err)
	}
	for _, name := range []string{"query", "match[]"} {
		for _, text := range r.Form[name] {
			if len(text) > longest {
				return fmt.Errorf("%s has %d bytes: at most %d", name, len(text), longest)
			}
			if name == "query" {
				if err := a.modest(text); err != nil {
					return fmt.Errorf("invalid parameter \"query\": %w", err)
				}
			}
		}
	}
	return nil
}

// modest reports a query that takes more to look at than it may. What is no query is
// told later, in Prometheus's words.
func (a *API) modest(text string) error {
	if err := busy(text); err != nil {
		return err
	}
	n, err := a.read.ParseExpr(text)
	if err != nil {
		return nil
	}
	return grows(n, text)
}

// none is no rules.
type none struct{}

func (none) RuleGroups() []*rules.Group           { return nil }
func (none) AlertingRules() []*rules.AlertingRule { return nil }
func (none) Alertmanagers() []*url.URL            { return nil }
func (none) DroppedAlertmanagers() []*url.URL     { return nil }

// nothing is what a server that scrapes nothing has.
type nothing struct{}

func (nothing) TargetsActive() map[string][]*scrape.Target  { return nil }
func (nothing) TargetsDropped() map[string][]*scrape.Target { return nil }
func (nothing) TargetsDroppedCounts() map[string]int        { return nil }
func (nothing) ScrapePools() []string                       { return nil }
func (nothing) ScrapePoolConfig(string) (*config.ScrapeConfig, error) {
	return nil, errors.New("this server scrapes nothing")
}

// plain is samples without exemplars.
type plain struct{}

func (p plain) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) { return p, nil }
func (plain) Select(int64, int64, ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	return []exemplar.QueryResult{}, nil
}

// admin shows the state of a database, and changes nothing.
type admin struct{ *tsdb.DB }

func (a admin) Stats(by string, limit int) (*tsdb.Stats, error) {
	return a.Head().Stats(by, limit), nil
}
func (a admin) WALReplayStatus() (tsdb.WALReplayStatus, error) { return tsdb.WALReplayStatus{}, nil }
func (a admin) BlockMetas() ([]tsdb.BlockMeta, error)          { return a.DB.BlockMetas(), nil }
