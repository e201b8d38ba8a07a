package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// listed makes an answer of the part of a list that is wanted.
func listed[T any](a asked, list []T, key func(*T) string, json, csv func([]T) []byte) *found {
	page, next := v1.Of(a.part, list, key)
	return &found{
		json: func() []byte { return v1.Paged(json(page), next) },
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
		want, err := v1.ParseText(a.given, name)
		if name == v1.ParamState {
			want, err = v1.ParseWord(a.given, name, states)
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
		list, err = narrow(a, list, v1.NodeStates(), map[string]func(*query.Node) string{
			v1.ParamCluster: func(n *query.Node) string { return n.Cluster },
			v1.ParamState:   func(n *query.Node) string { return n.State },
		})
	}
	return listed(a, list, func(n *query.Node) string { return v1.Key(n.Cluster, n.Name, n.ID) }, v1.NodesJSON, v1.NodesCSV), err
}

func (h *handler) clusters(ctx context.Context, a asked) (*found, error) {
	list, err := h.ledger.Nodes(ctx, a.scope)
	return listed(a, v1.ClustersOf(list), func(c *query.Cluster) string { return v1.Key(c.Name, "") }, v1.ClustersJSON, v1.ClustersCSV), err
}

func (h *handler) sources(ctx context.Context, a asked) (*found, error) {
	list, err := h.ledger.Below(ctx, a.scope)
	if err == nil {
		list, err = narrow(a, list, v1.NodeStates(), map[string]func(*query.Source) string{
			v1.ParamCluster: func(s *query.Source) string { return s.Cluster },
			v1.ParamState:   func(s *query.Source) string { return s.State },
		})
	}
	return listed(a, list, func(s *query.Source) string { return v1.Key(s.Cluster, s.Name, s.ID) }, v1.SourcesJSON, v1.SourcesCSV), err
}

func (h *handler) streams(ctx context.Context, a asked) (*found, error) {
	node, err := v1.ParseNode(a.given)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Streams(ctx, a.scope)
	if err == nil {
		list, err = narrow(a, list, nil, map[string]func(*query.Stream) string{
			v1.ParamCluster: func(s *query.Stream) string { return s.Cluster },
		})
	}
	if node != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(s query.Stream) bool { return s.Node != node && s.Name != node })
		if err == nil && len(list) == 0 {
			err = h.knows(ctx, node, a.scope)
		}
	}
	return listed(a, list, func(s *query.Stream) string { return v1.Key(s.Cluster, s.Name, s.Node, s.ID) }, v1.StreamsJSON, v1.StreamsCSV), err
}

func (h *handler) workloads(ctx context.Context, a asked) (*found, error) {
	q, err := v1.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	// One more than is wanted shows that there are more. A page in the midst is a
	// part of all that there is.
	switch q.Scope = a.scope; {
	case a.part.Whole():
		q.Limit = maxWorkloads + 1
	case a.given[v1.ParamCursor] != nil:
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
	return listed(a, list, func(w *query.Workload) string { return v1.Key(w.Cluster, w.Node, w.Name.Name+string(w.ID)) },
		v1.WorkloadsJSON, v1.WorkloadsCSV), nil
}

func (h *handler) gaps(ctx context.Context, a asked) (*found, error) {
	from, to, err := v1.ParseRange(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	node, err := v1.ParseNode(a.given)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Gaps(ctx, from, to, node, a.scope)
	if err == nil && len(list) == 0 && node != "" {
		err = h.knows(ctx, node, a.scope)
	}
	return listed(a, list, func(g *query.Gap) string {
		return v1.Key(v1.Falling(g.From.UnixNano()), g.Node, g.Reason.String(), v1.Falling(g.To.UnixNano()), strconv.FormatInt(int64(g.Shift), 10))
	}, v1.GapsJSON, v1.GapsCSV), err
}

func (h *handler) vms(ctx context.Context, a asked) (*found, error) {
	from, to, err := v1.ParseRange(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.VMs(ctx, from, to, a.scope)
	return listed(a, list, func(v *query.VM) string { return v1.Key(v.Guest, v.Host, string(v.Workload), v.Node) }, v1.VMsJSON, v1.VMsCSV), err
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
