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

// paginate makes an answer of the part of a list that is wanted.
func paginate[T any](a request, list []T, key func(*T) string, json, csv func([]T) []byte) *response {
	page, next := v1.Paginate(a.page, list, key)
	return &response{
		json: func() []byte { return v1.AddNextCursor(json(page), next) },
		csv:  func() []byte { return csv(page) }, next: next,
	}
}

// filter leaves of a list what has the values of some parameters, where these are
// given; states are the words that there are for a state.
func filter[T any](a request, list []T, states []string, values map[string]func(*T) string) ([]T, error) {
	for name, of := range values {
		if a.params[name] == nil {
			continue
		}
		want, err := v1.ParseString(a.params, name)
		if name == v1.ParamState {
			want, err = v1.ParseEnum(a.params, name, states)
		}
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(slices.Clone(list), func(v T) bool { return of(&v) != want })
	}
	return list, nil
}

func (h *handler) nodes(ctx context.Context, a request) (*response, error) {
	list, err := h.ledger.Nodes(ctx, a.scope)
	if err == nil {
		list, err = filter(a, list, v1.NodeStates(), map[string]func(*query.Node) string{
			v1.ParamCluster: func(n *query.Node) string { return n.Cluster },
			v1.ParamState:   func(n *query.Node) string { return n.State },
		})
	}
	return paginate(a, list, func(n *query.Node) string { return v1.SortKey(n.Cluster, n.Name, n.ID) }, v1.NodesJSON, v1.NodesCSV), err
}

func (h *handler) clusters(ctx context.Context, a request) (*response, error) {
	list, err := h.ledger.Nodes(ctx, a.scope)
	return paginate(a, v1.GroupByCluster(list), func(c *query.Cluster) string { return v1.SortKey(c.Name, "") }, v1.ClustersJSON, v1.ClustersCSV), err
}

func (h *handler) sources(ctx context.Context, a request) (*response, error) {
	list, err := h.ledger.Below(ctx, a.scope)
	if err == nil {
		list, err = filter(a, list, v1.NodeStates(), map[string]func(*query.Source) string{
			v1.ParamCluster: func(s *query.Source) string { return s.Cluster },
			v1.ParamState:   func(s *query.Source) string { return s.State },
		})
	}
	return paginate(a, list, func(s *query.Source) string { return v1.SortKey(s.Cluster, s.Name, s.ID) }, v1.SourcesJSON, v1.SourcesCSV), err
}

func (h *handler) streams(ctx context.Context, a request) (*response, error) {
	node, err := v1.ParseNode(a.params)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Streams(ctx, a.scope)
	if err == nil {
		list, err = filter(a, list, nil, map[string]func(*query.Stream) string{
			v1.ParamCluster: func(s *query.Stream) string { return s.Cluster },
		})
	}
	if node != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(s query.Stream) bool { return s.Node != node && s.Name != node })
		if err == nil && len(list) == 0 {
			err = h.checkNode(ctx, node, a.scope)
		}
	}
	return paginate(a, list, func(s *query.Stream) string { return v1.SortKey(s.Cluster, s.Name, s.Node, s.ID) }, v1.StreamsJSON, v1.StreamsCSV), err
}

func (h *handler) workloads(ctx context.Context, a request) (*response, error) {
	q, err := v1.ParseFilter(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	// One more than is wanted shows that there are more. A page in the midst is a
	// part of all that there is.
	switch q.Scope = a.scope; {
	case a.page.IsAll():
		q.Limit = maxWorkloads + 1
	case a.params[v1.ParamCursor] != nil:
		q.Limit = 0
	default:
		q.Limit++
	}
	list, err := h.ledger.Workloads(ctx, q)
	if err != nil {
		return nil, err
	}
	if a.page.IsAll() && len(list) > maxWorkloads {
		return nil, fault.WithHint(fmt.Errorf("more than %d workloads: %w", maxWorkloads, fault.ErrInvalid),
			"narrow the question with from, to and where, or set a limit")
	}
	return paginate(a, list, func(w *query.Workload) string { return v1.SortKey(w.Cluster, w.Node, w.Name.Name+string(w.ID)) },
		v1.WorkloadsJSON, v1.WorkloadsCSV), nil
}

func (h *handler) gaps(ctx context.Context, a request) (*response, error) {
	from, to, err := v1.ParseRange(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	node, err := v1.ParseNode(a.params)
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.Gaps(ctx, from, to, node, a.scope)
	if err == nil && len(list) == 0 && node != "" {
		err = h.checkNode(ctx, node, a.scope)
	}
	return paginate(a, list, func(g *query.Gap) string {
		return v1.SortKey(v1.DescendingKey(g.From.UnixNano()), g.Node, g.Reason.String(), v1.DescendingKey(g.To.UnixNano()), strconv.FormatInt(int64(g.Shift), 10))
	}, v1.GapsJSON, v1.GapsCSV), err
}

func (h *handler) vms(ctx context.Context, a request) (*response, error) {
	from, to, err := v1.ParseRange(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	list, err := h.ledger.VMs(ctx, from, to, a.scope)
	return paginate(a, list, func(v *query.VM) string { return v1.SortKey(v.Guest, v.Host, string(v.Workload), v.Node) }, v1.VMsJSON, v1.VMsCSV), err
}

// checkNode refuses the id or name of a node that there is not: that it has no gaps
// would say that all of it is known.
func (h *handler) checkNode(ctx context.Context, node string, s query.Scope) error {
	nodes, err := h.ledger.Nodes(ctx, s)
	if err != nil || slices.ContainsFunc(nodes, func(n query.Node) bool { return n.ID == node || n.Name == node }) {
		return err
	}
	return fault.WithHint(fmt.Errorf("node %q: %w", node, fault.ErrNotFound), "mete nodes lists those that there are")
}
