package api

import (
	"context"
	"fmt"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// maxTop is how many of the busiest workloads a summary names at most.
const maxTop = 100

func (h *handler) rates(ctx context.Context, a request) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("present rates: %w", fault.ErrUnsupported)
	}
	list, err := h.live.Latest(ctx, a.scope)
	return &response{json: func() []byte { return v1.RatesJSON(list) }}, err
}

func (h *handler) summary(ctx context.Context, a request) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("what is used at present: %w", fault.ErrUnsupported)
	}
	node, err := v1.ParseNode(a.params)
	if err != nil {
		return nil, err
	}
	nodes, err := v1.ParseNumber(a.params, v1.ParamNodes, 1)
	if err != nil {
		return nil, err
	}
	top, err := v1.ParseNumber(a.params, v1.ParamTop, maxTop)
	if err != nil {
		return nil, err
	}
	sum, err := h.live.Summary(ctx, a.scope, node, top)
	if err == nil && len(sum.Nodes) == 0 && node != "" {
		err = h.checkNode(ctx, node, a.scope)
	}
	if err != nil {
		return nil, err
	}
	if nodes == 0 {
		sum.Nodes = nil
	}
	return &response{json: func() []byte { return v1.SummaryJSON(sum) }}, nil
}

func (h *handler) alerts(ctx context.Context, a request) (*response, error) {
	if h.live == nil {
		return nil, fmt.Errorf("alerts: %w", fault.ErrUnsupported)
	}
	list, err := h.live.Alerts(ctx, a.scope)
	if err == nil {
		list, err = filter(a, list, v1.AlertStates(), map[string]func(*query.Alert) string{
			v1.ParamCluster: func(l *query.Alert) string { return l.Cluster },
			v1.ParamState:   func(l *query.Alert) string { return l.State },
		})
	}
	v1.SortAlerts(list)
	return paginate(a, list, func(l *query.Alert) string { return v1.SortKey(l.State, l.Rule, l.Cluster, v1.LabelsText(l.Labels)) },
		v1.AlertsJSON, v1.AlertsCSV), err
}

// health puts together what is known of how well is measured.
func (h *handler) health(ctx context.Context, a request) (*response, error) {
	now := h.now().UTC()
	from, to, err := v1.ParseRange(a.params, now)
	if err != nil {
		return nil, err
	}
	out := query.Health{From: from, To: to, States: map[string]int{}, Alerts: map[string]int{}}
	nodes, err := h.ledger.Nodes(ctx, a.scope)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		n := &nodes[i]
		out.States[n.State]++
		out.Streams += n.Streams
		if (n.State == "live" || n.State == "behind") && !n.Through.IsZero() {
			out.Behind = max(out.Behind, now.Sub(n.Through))
		}
	}
	var gaps v1.GapSums
	if err := h.ledger.EachGap(ctx, from, to, a.scope, gaps.Add); err != nil {
		return nil, err
	}
	out.Gaps = gaps.List()
	vms, err := h.ledger.VMs(ctx, from, to, a.scope)
	if err != nil {
		return nil, err
	}
	for i := range vms {
		out.Compared += vms[i].Compared
		out.Differing += vms[i].Differing
	}
	if h.live != nil {
		alerts, err := h.live.Alerts(ctx, a.scope)
		if err != nil {
			return nil, err
		}
		for i := range alerts {
			out.Alerts[alerts[i].State]++
		}
		if a.scope.All {
			if out.Server, err = h.live.ServerHealth(ctx); err != nil {
				return nil, err
			}
		}
	}
	return &response{json: func() []byte { return v1.HealthJSON(&out) }}, nil
}
