package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// paginate makes an answer of the requested page of a list, whose elements are made by of.
func paginate[M any, T v1.Element](r v1.PageRequest, list []M, key func(*M) string, of func(*M) T) *response {
	page, next := v1.Paginate(r, list, key)
	out := v1.ListOf(page, of)
	out.Next = next
	return &response{out, next}
}

// keep returns the elements of a list that pass.
func keep[T any](list []T, passes func(*T) bool) (out []T) {
	for i := range list {
		if passes(&list[i]) {
			out = append(out, list[i])
		}
	}
	return out
}

func (h *handler) nodes(ctx context.Context, p *nodesParams) (*response, error) {
	list, err := h.ledger.Nodes(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	list = keep(list, func(n *query.Node) bool { return p.inCluster(n.Cluster) && p.inState(n.State) })
	if !p.scope.All {
		for i := range list {
			// They tell one machine from others wherever it appears, also in other clusters.
			list[i].MachineID, list[i].Boot = "", ""
		}
	}
	return paginate(p.page, list, func(n *query.Node) string { return v1.SortKey(n.Cluster, n.Name, n.ID) }, v1.NodeOf), nil
}

func (h *handler) clusters(ctx context.Context, p *listParams) (*response, error) {
	list, err := h.ledger.Nodes(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	key := func(c *v1.Cluster) string { return v1.SortKey(c.Name, "") }
	return paginate(p.page, v1.ClustersOf(list), key, func(c *v1.Cluster) v1.Cluster { return *c }), nil
}

func (h *handler) sources(ctx context.Context, p *nodesParams) (*response, error) {
	list, err := h.ledger.DownstreamServers(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	list = keep(list, func(s *query.Source) bool { return p.inCluster(s.Cluster) && p.inState(s.State) })
	return paginate(p.page, list, func(s *query.Source) string { return v1.SortKey(s.Cluster, s.Name, s.ID) }, v1.SourceOf), nil
}

func (h *handler) dimensions(ctx context.Context, p *listParams) (*response, error) {
	list, err := h.ledger.Dimensions(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	return paginate(p.page, list, func(d *query.DimensionCount) string { return v1.SortKey(string(d.Dimension)) }, v1.DimensionOf), nil
}

func (h *handler) streams(ctx context.Context, p *streamsParams) (*response, error) {
	list, err := h.ledger.Streams(ctx, query.StreamQuery{Scope: p.within(p.scope), Node: p.node, After: p.page.After(), Limit: p.most() + 1})
	if err != nil {
		return nil, err
	}
	if p.limit == 0 && len(list) > v1.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d streams: %w", v1.MaxGroups, fault.ErrInvalid), "set limit to get them in pages, or name one node")
	}
	if p.page.IsAll() {
		slices.SortFunc(list, func(a, b query.Stream) int {
			return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node), a.Opened.Compare(b.Opened), cmp.Compare(a.ID, b.ID))
		})
	}
	if p.node != "" && len(list) == 0 {
		if err := h.checkNode(ctx, p.node, p.scope); err != nil {
			return nil, err
		}
	}
	if !p.scope.All {
		for i := range list {
			list[i].Boot = ""
		}
	}
	return paginate(p.page, list, func(s *query.Stream) string { return s.ID }, v1.StreamOf), nil
}

func (h *handler) workloads(ctx context.Context, p *useParams) (*response, error) {
	// One workload more than the limit shows that another page follows.
	q := query.Query{From: p.start, To: p.end, Where: p.filters, Scope: p.scope, After: p.page.After(), Limit: p.most() + 1}
	list, err := h.ledger.Workloads(ctx, q)
	if err != nil {
		return nil, err
	}
	page, err := fit(&p.Paged, list, func(w *query.Workload) *query.Workload { return w })
	if err != nil {
		return nil, err
	}
	return paginate(page, list, (*query.Workload).PageKey, v1.WorkloadOf), nil
}

func (h *handler) runs(ctx context.Context, p *runsParams) (*response, error) {
	q := query.RunQuery{Query: query.Query{From: p.start, To: p.end, Where: p.filters, Scope: p.scope, After: p.page.After(), Limit: p.most() + 1}, Failed: p.failed, ID: p.run}
	list, err := h.ledger.Runs(ctx, q)
	if err != nil {
		return nil, err
	}
	page, err := fit(&p.Paged, list, func(r *query.Run) *query.Workload { return &r.Workload })
	if err != nil {
		return nil, err
	}
	return paginate(page, list, func(r *query.Run) string { return r.RunKey() }, v1.RunOf), nil
}

// most is the largest number of workloads or streams on the page.
func (g *Paged) most() int {
	if g.limit > 0 {
		return g.limit
	}
	return maxWorkloads
}

// fit returns the page that the answer has, of what the ledger found for it: the answer is held while a
// caller reads it, as slowly as that may be.
func fit[T any](p *Paged, list []T, of func(*T) *query.Workload) (v1.PageRequest, error) {
	fits, size := 0, 0
	for fits < min(len(list), p.most()) && size < maxListBytes {
		size += textSize(of(&list[fits]))
		fits++
	}
	switch {
	case fits == len(list):
	case p.limit > 0:
		return p.page.AtMost(fits), nil
	default:
		return p.page, fault.WithHint(fmt.Errorf("more than %d workloads, or %d MiB: %w", maxWorkloads, maxListBytes>>20, fault.ErrInvalid),
			"narrow the query with from, to and where, or set a limit")
	}
	return p.page, nil
}

// textSize returns the bytes of the texts of a workload.
func textSize(w *query.Workload) int {
	n := len(w.Name.Name) + len(w.Key) + len(w.Path) + len(w.Job) + len(w.User) + len(w.Project) + len(w.Node) + len(w.Cluster)
	for k, v := range w.Labels {
		n += len(k) + len(v)
	}
	return n
}

func (h *handler) gaps(ctx context.Context, p *nodeRangeParams) (*response, error) {
	list, err := h.ledger.Gaps(ctx, p.start, p.end, p.node, p.scope)
	if err == nil && len(list) == 0 && p.node != "" {
		err = h.checkNode(ctx, p.node, p.scope)
	}
	if err != nil {
		return nil, err
	}
	key := func(g *query.Gap) string {
		return v1.SortKey(v1.DescendingKey(g.From.UnixNano()), g.Node, g.Reason.String(), v1.DescendingKey(g.To.UnixNano()), strconv.FormatInt(int64(g.Shift), 10))
	}
	r := paginate(p.page, list, key, v1.GapOf)
	if len(list) > query.MaxGaps && r.next == "" { // the list lacks the oldest gaps
		return nil, fault.WithHint(fmt.Errorf("more than %d gaps: %w", query.MaxGaps, fault.ErrInvalid), "narrow the query with from and to, name one node, or set limit to get the latest")
	}
	return r, nil
}

func (h *handler) uptimes(ctx context.Context, p *nodeRangeParams) (*response, error) {
	list, err := h.ledger.Uptimes(ctx, p.start, p.end, p.node, p.scope)
	if err == nil && len(list) == 0 && p.node != "" {
		err = h.checkNode(ctx, p.node, p.scope)
	}
	if err != nil {
		return nil, err
	}
	return paginate(p.page, list, func(u *query.Uptime) string { return v1.SortKey(u.Cluster, u.Name, u.Node) }, v1.UptimeOf), nil
}

func (h *handler) vms(ctx context.Context, p *vmsParams) (*response, error) {
	list, err := h.ledger.VMs(ctx, p.start, p.end, p.scope)
	if err != nil {
		return nil, err
	}
	return paginate(p.page, list, func(v *query.VM) string { return v1.SortKey(v.Guest, v.Host, string(v.Workload), v.Node) }, v1.VMOf), nil
}

// checkNode returns fault.ErrNotFound if no node has this id or name: an empty list would look
// like the answer for an existing node.
func (h *handler) checkNode(ctx context.Context, node string, s query.Scope) error {
	nodes, err := h.ledger.Nodes(ctx, s)
	if err != nil || slices.ContainsFunc(nodes, func(n query.Node) bool { return n.ID == node || n.Name == node }) {
		return err
	}
	return fault.WithHint(fmt.Errorf("node %q: %w", node, fault.ErrNotFound), "mete nodes lists the nodes")
}
