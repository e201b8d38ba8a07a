// Package api answers questions to a server over HTTP: what was used
// (/v1/usage), by which machines (/v1/nodes) and workloads (/v1/workloads), which
// servers tell of machines of theirs (/v1/sources), of which time not all is
// known (/v1/gaps), and what is used at present (/v1/rates). Beside them it takes
// the orders of the machine's administrator.
//
// A question that has a parameter too many or a value that means nothing is
// refused, and the refusal says what would be right. Errors are problems of
// RFC 9457.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/tally"
)

// patience is how long a ledger may look for an answer.
const patience = 30 * time.Second

// maxWorkloads is how many workloads a list has at most.
const maxWorkloads = tally.MaxGroups

// A Ledger knows what was used. A dimension that it does not have is
// fault.ErrInvalid.
type Ledger interface {
	// Usage answers with at most q.Limit groups.
	Usage(ctx context.Context, q query.Query) (*query.Answer, error)
	Nodes(ctx context.Context, s query.Scope) ([]query.Node, error)
	// Below lists the servers that tell of their nodes here.
	Below(ctx context.Context, s query.Scope) ([]query.Source, error)
	// Workloads lists at most q.Limit workloads with use in the range of q that
	// pass its filters; q.By means nothing.
	Workloads(ctx context.Context, q query.Query) ([]query.Workload, error)
	// Gaps lists the gaps that touch the range and the corrections of clocks in
	// it, of one node by its id or name, or of all where that is "".
	Gaps(ctx context.Context, from, to time.Time, node string, s query.Scope) ([]query.Gap, error)
}

// Rates knows what is used at present.
type Rates interface {
	Latest(ctx context.Context, s query.Scope) ([]query.Latest, error)
}

type handler struct {
	ledger    Ledger
	live      Rates
	authorize func(*http.Request) (query.Scope, error)
	now       func() time.Time
	log       *slog.Logger
}

// New returns the handler of all questions. authorize says what who asks may
// see; an error that wraps fault.ErrDenied becomes 403, or 401 where the
// request shows no credential at all. live may be nil: then there is no
// /v1/rates.
func New(l Ledger, live Rates, authorize func(*http.Request) (query.Scope, error), now func() time.Time, log *slog.Logger) http.Handler {
	h := &handler{l, live, authorize, now, log}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/usage", h.read(h.usage))
	mux.HandleFunc("/v1/nodes", h.read(h.nodes))
	mux.HandleFunc("/v1/sources", h.read(h.sources))
	mux.HandleFunc("/v1/workloads", h.read(h.workloads))
	mux.HandleFunc("/v1/gaps", h.read(h.gaps))
	mux.HandleFunc("/v1/rates", h.read(h.rates))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if !only(w, r, http.MethodGet, http.MethodHead) {
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n")) // who has gone away needs no answer
	})
	mux.HandleFunc("/", nothing)
	return mux
}

// nothing answers where there is nothing.
func nothing(w http.ResponseWriter, r *http.Request) {
	problem(w, fault.WithHint(fmt.Errorf("%q: %w", r.URL.Path, fault.ErrNotFound), "there are /v1/usage, /v1/nodes, /v1/sources, /v1/workloads, /v1/gaps, /v1/rates, /metrics and /healthz"))
}

// A question finds the body of the answer to a request.
type question func(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error)

// read makes a handler of a question that is answered in JSON.
func (h *handler) read(ask question) http.HandlerFunc { return h.readAs("application/json", ask) }

// readAs makes a handler of a question that is answered in some media type.
func (h *handler) readAs(kind string, ask question) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !only(w, r, http.MethodGet, http.MethodHead) {
			return
		}
		scope, err := h.authorize(r)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		// The standard library's Query leaves out what it cannot read, and so
		// would answer another question.
		given, err := parameters(r.URL.RawQuery)
		if err != nil {
			problem(w, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		body, err := ask(ctx, given, scope)
		switch {
		case r.Context().Err() != nil:
			return // who asked has gone
		case errors.Is(err, context.DeadlineExceeded):
			problem(w, fault.WithHint(fmt.Errorf("no answer within %s: %w", patience, fault.ErrUnavailable), "ask about less time or fewer groups"))
		case err != nil:
			h.fail(w, r, err)
		default:
			w.Header().Set("Content-Type", kind)
			send(w, http.StatusOK, body)
		}
	}
}

func (h *handler) usage(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	q, err := tally.ParseQuery(given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	// What is above a limit is told as a sum, so the ledger has to find all of it.
	// Without a limit, one more than the most shows that there are too many.
	if q.Scope, q.Limit = s, 0; limit == 0 {
		q.Limit = tally.MaxGroups + 1
	}
	a, err := h.ledger.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	if limit == 0 && len(a.Groups) > tally.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d groups by %s: %w", tally.MaxGroups, names(q.By), fault.ErrInvalid),
			"ask for the largest with limit, group by less, or narrow the question with from, to and where")
	}
	nodes, err := h.ledger.Nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	tally.Narrow(a, nodes)
	if limit > 0 {
		tally.Limit(a, limit)
	}
	return tally.JSON(a), nil
}

func names(by []query.Dimension) string {
	var s []string
	for _, d := range by {
		s = append(s, string(d))
	}
	return strings.Join(s, ",")
}

func (h *handler) nodes(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	if err := tally.Only(given); err != nil {
		return nil, err
	}
	list, err := h.ledger.Nodes(ctx, s)
	return tally.NodesJSON(list), err
}

func (h *handler) sources(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	if err := tally.Only(given); err != nil {
		return nil, err
	}
	list, err := h.ledger.Below(ctx, s)
	return tally.SourcesJSON(list), err
}

func (h *handler) workloads(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	if err := tally.Only(given, tally.ParamFrom, tally.ParamTo, tally.ParamWhere, tally.ParamLimit); err != nil {
		return nil, err
	}
	q, err := tally.ParseFilter(given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	if q.Scope = s; limit == 0 {
		q.Limit = maxWorkloads + 1
	}
	list, err := h.ledger.Workloads(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(list) > maxWorkloads {
		return nil, fault.WithHint(fmt.Errorf("more than %d workloads: %w", maxWorkloads, fault.ErrInvalid),
			"narrow the question with from, to and where, or set a limit")
	}
	return tally.WorkloadsJSON(list), nil
}

func (h *handler) gaps(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	if err := tally.Only(given, tally.ParamFrom, tally.ParamTo, tally.ParamNode); err != nil {
		return nil, err
	}
	from, to, err := tally.ParseRange(given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	node, err := tally.ParseNode(given)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Gaps(ctx, from, to, node, s)
	if err == nil && len(list) == 0 && node != "" {
		err = h.knows(ctx, node, s)
	}
	return tally.GapsJSON(list), err
}

// knows refuses the id or name of a node that there is not: that it has no gaps
// would say that all of it is known.
func (h *handler) knows(ctx context.Context, node string, s query.Scope) error {
	nodes, err := h.ledger.Nodes(ctx, s)
	if err != nil || slices.ContainsFunc(nodes, func(n query.Node) bool { return n.ID == node || n.Name == node }) {
		return err
	}
	return fault.WithHint(fmt.Errorf("node %q: %w", node, fault.ErrNotFound), "mete nodes lists those that there are")
}

func (h *handler) rates(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
	if err := tally.Only(given); err != nil {
		return nil, err
	}
	if h.live == nil {
		return nil, fmt.Errorf("present rates: %w", fault.ErrUnsupported)
	}
	list, err := h.live.Latest(ctx, s)
	return tally.RatesJSON(list), err
}

// refuse answers who may not ask.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := fault.ProblemOf(err)
	if errors.Is(err, fault.ErrDenied) && r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0) {
		p.Status, p.Title = http.StatusUnauthorized, "who are you?"
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.Status >= http.StatusInternalServerError {
		h.log.Error("request not authorized", "path", r.URL.Path, "err", err)
	}
	write(w, p)
}

// fail answers with an error, and logs one that is the server's own.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := fault.ProblemOf(err)
	if p.Status >= http.StatusInternalServerError {
		h.log.Error("question not answered", "path", r.URL.Path, "err", err)
	}
	write(w, p)
}

// only refuses all methods but those given, and reports whether to go on.
func only(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	write(w, fault.Problem{Title: "method not allowed", Detail: "there is only " + strings.Join(methods, " and "), Status: http.StatusMethodNotAllowed})
	return false
}

func problem(w http.ResponseWriter, err error) { write(w, fault.ProblemOf(err)) }

func write(w http.ResponseWriter, p fault.Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic("api: " + err.Error()) // it is plain text and a number
	}
	w.Header().Set("Content-Type", fault.ProblemType)
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	send(w, p.Status, append(body, '\n'))
}

func answer(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	send(w, status, body)
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has gone away needs no answer
}
