package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/tally"
)

// listed makes an answer of the part of a list that is wanted.
func listed[T any](a asked, list []T, key func(*T) string, json, csv func([]T) []byte) *found {
	page, next := tally.Of(a.part, list, key)
	return &found{
		json: func() []byte { return tally.Paged(json(page), next) },
		csv:  func() []byte { return csv(page) }, next: next,
	}
}

// narrow leaves of a list what has the values of some parameters, where these are
// given; states are the words that there are for a state.
func narrow[T any](a asked, list []T, states []string, values map[string]func(*T) string) ([]T, error) {
	for name, of := range values {
		if a.given[name] == nil {
			continue
		}
		want, err := tally.ParseText(a.given, name)
		if name == tally.ParamState {
			want, err = tally.ParseWord(a.given, name, states)
		}
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(slices.Clone(list), func(v T) bool { return of(&v) != want })
	}
	return list, nil
}

func (h *handler) nodes(ctx context.Context, a asked) (*found, error) {
	list, err := h.ledger.Nodes(ctx, a.scope)
	if err == nil {
		list, err = narrow(a, list, tally.NodeStates(), map[string]func(*query.Node) string{
			tally.ParamCluster: func(n *query.Node) string { return n.Cluster },
			tally.ParamState:   func(n *query.Node) string { return n.State },
		})
	}
	return listed(a, list, func(n *query.Node) string { return tally.Key(n.Cluster, n.Name, n.ID) }, tally.NodesJSON, tally.NodesCSV), err
}

func (h *handler) clusters(ctx context.Context, a asked) (*found, error) {
	list, err := h.ledger.Nodes(ctx, a.scope)
	return listed(a, tally.ClustersOf(list), func(c *query.Cluster) string { return tally.Key(c.Name, "") }, tally.ClustersJSON, tally.ClustersCSV), err
}

func (h *handler) sources(ctx context.Context, a asked) (*found, error) {
	list, err := h.ledger.Below(ctx, a.scope)
	if err == nil {
		list, err = narrow(a, list, tally.NodeStates(), map[string]func(*query.Source) string{
			tally.ParamCluster: func(s *query.Source) string { return s.Cluster },
			tally.ParamState:   func(s *query.Source) string { return s.State },
		})
	}
	return listed(a, list, func(s *query.Source) string { return tally.Key(s.Cluster, s.Name, s.ID) }, tally.SourcesJSON, tally.SourcesCSV), err
}

func (h *handler) streams(ctx context.Context, a asked) (*found, error) {
	node, err := tally.ParseNode(a.given)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Streams(ctx, a.scope)
	if err == nil {
		list, err = narrow(a, list, nil, map[string]func(*query.Stream) string{
			tally.ParamCluster: func(s *query.Stream) string { return s.Cluster },
		})
	}
	if node != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(s query.Stream) bool { return s.Node != node && s.Name != node })
		if err == nil && len(list) == 0 {
			err = h.knows(ctx, node, a.scope)
		}
	}
	return listed(a, list, func(s *query.Stream) string { return tally.Key(s.Cluster, s.Name, s.Node, s.ID) }, tally.StreamsJSON, tally.StreamsCSV), err
}

func (h *handler) workloads(ctx context.Context, a asked) (*found, error) {
	q, err := tally.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	// One more than is wanted shows that there are more. A page in the midst is a
	// part of all that there is.
	switch q.Scope = a.scope; {
	case a.part.Whole():
		q.Limit = maxWorkloads + 1
	case a.given[tally.ParamCursor] != nil:
		q.Limit = 0
	default:
		q.Limit++
	}
	list, err := h.ledger.Workloads(ctx, q)
	if err != nil {
		return nil, err
	}
	if a.part.Whole() && len(list) > maxWorkloads {
		return nil, fault.WithHint(fmt.Errorf("more than %d workloads: %w", maxWorkloads, fault.ErrInvalid),
			"narrow the question with from, to and where, or set a limit")
	}
	return listed(a, list, func(w *query.Workload) string { return tally.Key(w.Cluster, w.Node, w.Name.Name+string(w.ID)) },
		tally.WorkloadsJSON, tally.WorkloadsCSV), nil
}

func (h *handler) gaps(ctx context.Context, a asked) (*found, error) {
	from, to, err := tally.ParseRange(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	node, err := tally.ParseNode(a.given)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Gaps(ctx, from, to, node, a.scope)
	if err == nil && len(list) == 0 && node != "" {
		err = h.knows(ctx, node, a.scope)
	}
	return listed(a, list, func(g *query.Gap) string {
		return tally.Key(tally.Falling(g.From.UnixNano()), g.Node, g.Reason.String(), tally.Falling(g.To.UnixNano()), strconv.FormatInt(int64(g.Shift), 10))
	}, tally.GapsJSON, tally.GapsCSV), err
}

func (h *handler) vms(ctx context.Context, a asked) (*found, error) {
	from, to, err := tally.ParseRange(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.VMs(ctx, from, to, a.scope)
	return listed(a, list, func(v *query.VM) string { return tally.Key(v.Guest, v.Host, string(v.Workload), v.Node) }, tally.VMsJSON, tally.VMsCSV), err
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
