// Package api is the HTTP API of a server, below /v1/: usage, nodes and workloads, gaps,
// present rates, and the health of the measurements; and the orders of the machine's
// administrator, on a socket.
//
// The handlers describe themselves: /openapi.json is made of the structs that parse their
// parameters and of the types that package v1 writes, and /docs shows it.
//
// A request with an unknown parameter or an invalid value is refused with a hint that
// says what is valid. Errors are problems of RFC 9457.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/x/fairqueue"
)

// queryTimeout is how long a ledger may take for an answer.
const queryTimeout = 30 * time.Second

// The number of questions that are answered at once, and that wait of callers with one
// scope: a question holds a connection to the database, which has a few more, and one to
// a large ledger takes all CPUs for seconds.
const (
	maxConcurrent = 4
	maxQueue      = 256
)

// maxWorkloads is the largest number of workloads in a list.
const maxWorkloads = v1.MaxGroups

// A Ledger has what was used. A dimension that it does not have is fault.ErrInvalid.
type Ledger interface {
	// Usage returns at most q.Limit groups.
	Usage(ctx context.Context, q query.Query) (*query.Answer, error)
	Nodes(ctx context.Context, s query.Scope) ([]query.Node, error)
	// Below lists the servers below.
	Below(ctx context.Context, s query.Scope) ([]query.Source, error)
	// Workloads lists the first q.Limit workloads, all where that is 0, that used something
	// in the range of q and pass its filters, by cluster, node, and name with id. q.By has
	// no effect.
	Workloads(ctx context.Context, q query.Query) ([]query.Workload, error)
	// Gaps lists the gaps that touch the range and the corrections of clocks in it, of one
	// node, by id or name, or of all where that is "".
	Gaps(ctx context.Context, from, to time.Time, node string, s query.Scope) ([]query.Gap, error)
	// EachGap calls f for those of all nodes, without a limit.
	EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error
	// Streams lists the streams of the nodes.
	Streams(ctx context.Context, s query.Scope) ([]query.Stream, error)
	// VMs lists the virtual machines that hosts gave energy in the range.
	VMs(ctx context.Context, from, to time.Time, s query.Scope) ([]query.VM, error)
}

// Live has what is used at present, and the health of the server.
type Live interface {
	// Latest returns the rates of the workloads of each node that has a fresh window.
	Latest(ctx context.Context, s query.Scope) ([]live.NodeRates, error)
	// Summary returns what the nodes use, together and each, or the one with this id or
	// name, with that many of the busiest workloads by each of live.TopKeys.
	Summary(ctx context.Context, s query.Scope, node string, top int) (*live.Summary, error)
	// Alerts lists the alerts that are pending or fire.
	Alerts(ctx context.Context, s query.Scope) ([]query.Alert, error)
	ServerHealth(ctx context.Context) (*query.ServerHealth, error)
}

type handler struct {
	ledger    Ledger
	live      Live
	jobSource Jobs // nil where there are none
	authorize func(*http.Request) (query.Scope, error)
	now       func() time.Time
	log       *slog.Logger
	queue     *fairqueue.Queue
}

// New returns the handler of all questions. authorize returns the scope of a caller; an
// error that wraps fault.ErrDenied becomes 403, or 401 where the request has no
// credential. Without live, /v1/rates, /v1/summary and /v1/alerts are not supported;
// without jobs, /v1/self is not.
func New(l Ledger, live Live, jobs Jobs, authorize func(*http.Request) (query.Scope, error), now func() time.Time, log *slog.Logger) http.Handler {
	h := &handler{l, live, jobs, authorize, now, log, fairqueue.New(maxConcurrent, maxQueue)}
	mux := http.NewServeMux()
	paths := h.describe(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, fault.WithHint(fmt.Errorf("%q: %w", r.URL.Path, fault.ErrNotFound), "there are "+strings.Join(paths, ", ")+", /metrics and /docs"))
	})
	return Guard(mux)
}
