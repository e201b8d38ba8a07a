// Package api answers questions to a server over HTTP, below /v1/: what was used,
// by which machines and workloads, of which time not all is known, what is used at
// present, and how well all that is measured. Beside them it takes the orders of
// the machine's administrator.
//
// What can be asked is described by the handlers themselves: /openapi.json is made
// of the parameters that they accept and of the types that they write, and /docs
// shows it to people.
//
// A question that has a parameter too many or a value that means nothing is
// refused, and the refusal says what would be right. Errors are problems of
// RFC 9457.
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

// queryTimeout is how long a ledger may look for an answer.
const queryTimeout = 30 * time.Second

// How many questions are answered at once, and how many wait of those who see the
// same: a question holds a connection to the database, of which there are a few more,
// and the one of a large ledger takes all CPUs for seconds.
const (
	maxConcurrent = 4
	maxQueue      = 256
)

// maxWorkloads is how many workloads a list has at most.
const maxWorkloads = v1.MaxGroups

// A Ledger knows what was used. A dimension that it does not have is
// fault.ErrInvalid.
type Ledger interface {
	// Usage answers with at most q.Limit groups.
	Usage(ctx context.Context, q query.Query) (*query.Answer, error)
	Nodes(ctx context.Context, s query.Scope) ([]query.Node, error)
	// Below lists the servers that tell of their nodes here.
	Below(ctx context.Context, s query.Scope) ([]query.Source, error)
	// Workloads lists the first q.Limit workloads with use in the range of q that
	// pass its filters, all where that is 0, by cluster, node, and name with id;
	// q.By means nothing.
	Workloads(ctx context.Context, q query.Query) ([]query.Workload, error)
	// Gaps lists the gaps that touch the range and the corrections of clocks in
	// it, of one node by its id or name, or of all where that is "".
	Gaps(ctx context.Context, from, to time.Time, node string, s query.Scope) ([]query.Gap, error)
	// EachGap calls f for those of all nodes, however many there are.
	EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error
	// Streams lists the streams of the nodes.
	Streams(ctx context.Context, s query.Scope) ([]query.Stream, error)
	// VMs lists the virtual machines that hosts gave energy in the range.
	VMs(ctx context.Context, from, to time.Time, s query.Scope) ([]query.VM, error)
}

// Live knows what is used at present, and how the server is doing.
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

// New returns the handler of all questions. authorize says what who asks may
// see; an error that wraps fault.ErrDenied becomes 403, or 401 where the
// request shows no credential at all. live may be nil: then there are no
// /v1/rates, /v1/summary and /v1/alerts; as may jobs: then there is no /v1/self.
func New(l Ledger, live Live, jobs Jobs, authorize func(*http.Request) (query.Scope, error), now func() time.Time, log *slog.Logger) http.Handler {
	h := &handler{l, live, jobs, authorize, now, log, fairqueue.New(maxConcurrent, maxQueue)}
	mux := http.NewServeMux()
	paths := h.describe(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, fault.WithHint(fmt.Errorf("%q: %w", r.URL.Path, fault.ErrNotFound), "there are "+strings.Join(paths, ", ")+", /metrics and /docs"))
	})
	return Guard(mux)
}
