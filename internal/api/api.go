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

// Limits on the requests that are answered at once, and on those that wait of callers with the
// same scope. A request holds one of the database's few connections, and one to a large ledger
// takes all CPUs for seconds.
const (
	maxConcurrent = 4
	maxQueue      = 256
)

// maxWorkloads is the largest number of workloads in a list.
const maxWorkloads = v1.MaxGroups

// maxListBytes limits the bytes of texts of workloads in an answer. A page ends with the workload
// that reaches it.
const maxListBytes = 8 << 20

// A Ledger answers queries about booked use. A query with a dimension that the ledger does
// not have returns fault.ErrInvalid.
type Ledger interface {
	// Usage returns at most q.Limit groups.
	Usage(ctx context.Context, q query.Query) (*query.Answer, error)
	// EachPeriod calls f with the answer of Usage, then with those of the UTC hours or days of its
	// range, in order. Groups that f removes from the first are not in the others if q.Top is set.
	EachPeriod(ctx context.Context, q query.Query, every query.Period, f func(*query.Answer) error) error
	// Connections returns at most q.Limit edges, the largest first, and all traffic of the same workloads.
	Connections(ctx context.Context, q query.Query) (*query.Connections, error)
	Nodes(ctx context.Context, s query.Scope) ([]query.Node, error)
	// DownstreamServers lists the servers that send their rows to this one.
	DownstreamServers(ctx context.Context, s query.Scope) ([]query.Source, error)
	// Dimensions counts the workloads that have a value of each optional dimension.
	Dimensions(ctx context.Context, s query.Scope) ([]query.DimensionCount, error)
	// Workloads lists workloads that used something in the range of q and match its filters,
	// sorted by cluster, node, name and id: the first q.Limit, or all if q.Limit is 0. q.By
	// has no effect.
	Workloads(ctx context.Context, q query.Query) ([]query.Workload, error)
	// Runs lists runs that used something in the range of q and match its filters, as
	// [query.Workload.RunKey] orders them: the first q.Limit, or all if q.Limit is 0.
	Runs(ctx context.Context, q query.RunQuery) ([]query.Run, error)
	// Gaps lists the gaps that overlap the range and the clock corrections in it. node is the
	// id or name of one node; "" selects all nodes. It returns at most query.MaxGaps + 1.
	Gaps(ctx context.Context, from, to time.Time, node string, s query.Scope) ([]query.Gap, error)
	// Uptimes returns for how long of a range machines were up, sorted by cluster and name. node is the id or name
	// of one node; "" selects all nodes.
	Uptimes(ctx context.Context, from, to time.Time, node string, s query.Scope) ([]query.Uptime, error)
	// EachGap calls f for every gap and clock correction of all nodes, without a limit.
	EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error
	// Streams lists streams of nodes by id: the first q.Limit, or all if q.Limit is 0.
	Streams(ctx context.Context, q query.StreamQuery) ([]query.Stream, error)
	// VMs lists the virtual machines to which hosts gave energy in the range.
	VMs(ctx context.Context, from, to time.Time, s query.Scope) ([]query.VM, error)
}

// Live has the use of resources at present, and the health of the server.
type Live interface {
	// EachLatest calls f with the rates of the workloads of each node that has a fresh window and an id
	// greater than after, in the order of ids, until f returns false.
	EachLatest(ctx context.Context, s query.Scope, after string, f func(*live.NodeRates) bool) error
	// Summary returns the present use of all nodes, or of the one with this id or name, as a
	// sum and by node, with the top busiest workloads by each of live.TopKeys.
	Summary(ctx context.Context, s query.Scope, node string, top int) (*live.Summary, error)
	// Alerts lists the alerts that are pending or fire.
	Alerts(ctx context.Context, s query.Scope) ([]query.Alert, error)
	// Silences lists the silences, those that ended lately included.
	Silences(ctx context.Context, s query.Scope) ([]query.Silence, error)
	ServerHealth(ctx context.Context) (*query.ServerHealth, error)
}

type handler struct {
	ledger    Ledger
	live      Live
	selves    Selves // nil if the server has no jobs
	authorize func(*http.Request) (query.Scope, error)
	now       func() time.Time
	log       *slog.Logger
	queue     *fairqueue.Queue
}

// New returns the handler of the HTTP API. authorize returns the scope of a caller; an error
// that wraps fault.ErrDenied becomes 403, or 401 if the request has no credential. Without
// live, /v1/rates, /v1/summary and /v1/alerts are not supported; without selves, /v1/self is
// not.
func New(l Ledger, live Live, selves Selves, authorize func(*http.Request) (query.Scope, error), now func() time.Time, log *slog.Logger) http.Handler {
	h := &handler{l, live, selves, authorize, now, log, fairqueue.New(maxConcurrent, maxQueue)}
	mux := http.NewServeMux()
	paths := h.describe(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, fault.WithHint(fmt.Errorf("%q: %w", r.URL.Path, fault.ErrNotFound), "the paths are "+strings.Join(paths, ", ")+", /metrics and /docs"))
	})
	return Guard(mux, func(path string) bool { return path == DocsPath })
}
