package api

import (
	"context"
	"fmt"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
)

// maxTop is the largest number of busiest workloads in a summary.
const maxTop = 100

// rates lists nodes. An answer ends with the node that reaches a limit of lists of workloads.
func (h *handler) rates(ctx context.Context, p *ratesParams) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("present rates: %w", fault.ErrUnsupported)
	}
	var list []live.NodeRates
	fits, workloads, size := 0, 0, 0
	err := h.live.EachLatest(ctx, p.scope, p.page.After(), func(n *live.NodeRates) bool {
		list = append(list, *n) // one node more than fits shows that another page follows
		if fits == p.most() || workloads >= maxWorkloads || size >= maxListBytes {
			return false
		}
		fits++
		workloads += len(n.Rows)
		for i := range n.Rows {
			size += len(n.Rows[i].Name) + len(n.Rows[i].Job)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	page := p.page
	if fits < len(list) {
		if p.limit == 0 {
			return nil, fault.WithHint(fmt.Errorf("more than %d nodes or workloads, or %d MiB: %w", maxWorkloads, maxListBytes>>20, fault.ErrInvalid), "set limit to get the nodes in pages")
		}
		page = page.AtMost(fits)
	}
	return paginate(page, list, func(n *live.NodeRates) string { return n.Node }, func(n *live.NodeRates) live.NodeRates { return *n }), nil
}

func (h *handler) summary(ctx context.Context, p *summaryParams) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("what is used at present: %w", fault.ErrUnsupported)
	}
	sum, err := h.live.Summary(ctx, p.scope, p.node, p.top)
	if err == nil && len(sum.Nodes) == 0 && p.node != "" {
		err = h.checkNode(ctx, p.node, p.scope)
	}
	if err != nil {
		return nil, err
	}
	if !p.nodes {
		sum.Nodes = nil
	}
	return &response{body: jsonFunc(func() []byte { return v1.SummaryJSON(sum) })}, nil
}

func (h *handler) alerts(ctx context.Context, p *alertsParams) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("alerts: %w", fault.ErrUnsupported)
	}
	list, err := h.live.Alerts(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	list = keep(list, func(l *query.Alert) bool { return p.inCluster(l.Cluster) && p.inState(l.State) })
	v1.SortAlerts(list)
	key := func(l *query.Alert) string { return v1.SortKey(l.State, l.Rule, l.Cluster, v1.LabelsText(l.Labels)) }
	return paginate(p.page, list, key, v1.AlertOf), nil
}

func (h *handler) silences(ctx context.Context, p *silencesParams) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("silences: %w", fault.ErrUnsupported)
	}
	list, err := h.live.Silences(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	list = keep(list, func(s *query.Silence) bool { return p.inState(s.State(p.now)) })
	v1.SortSilences(list, p.now)
	key := func(s *query.Silence) string { return v1.SortKey(v1.DescendingKey(s.Ends.UnixNano()), s.ID) }
	return paginate(p.page, list, key, func(s *query.Silence) v1.Silence { return v1.SilenceOf(s, p.now) }), nil
}

// health collects how complete the measurements are.
func (h *handler) health(ctx context.Context, p *rangeParams) (*response, error) {
	out := &v1.Health{From: new(p.start.UTC()), To: new(p.end.UTC()), Nodes: map[string]int{}, Alerts: map[string]int{}}
	nodes, err := h.ledger.Nodes(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		n := &nodes[i]
		out.Nodes[n.State]++
		out.Streams += n.Streams
		if (n.State == "live" || n.State == "behind") && !n.Through.IsZero() {
			out.Behind = max(out.Behind, p.now.Sub(n.Through).Seconds())
		}
	}
	var gaps v1.GapSums
	if err := h.ledger.EachGap(ctx, p.start, p.end, p.scope, gaps.Add); err != nil {
		return nil, err
	}
	out.Gaps = gaps.List()
	vms, err := h.ledger.VMs(ctx, p.start, p.end, p.scope)
	if err != nil {
		return nil, err
	}
	for i := range vms {
		out.Shares.Compared += vms[i].Compared
		out.Shares.Differing += vms[i].Differing
	}
	if h.live != nil {
		alerts, err := h.live.Alerts(ctx, p.scope)
		if err != nil {
			return nil, err
		}
		for i := range alerts {
			out.Alerts[alerts[i].State]++
		}
		if p.scope.All {
			server, err := h.live.ServerHealth(ctx)
			if err != nil {
				return nil, err
			}
			out.Server = v1.ServerHealthOf(server)
		}
	}
	return &response{body: out}, nil
}
