package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
)

// A candidate is a row of a node's latest window.
type candidate struct {
	node *query.NodeSummary
	row  *receiver.SnapshotRow
	top  query.TopWorkload
}

// Summary implements api.Live. Only the busiest workloads are looked up by name,
// so that it costs little however many there are.
func (r liveProvider) Summary(ctx context.Context, s query.Scope, node string, top int) (*query.Summary, error) {
	nodes, err := r.Ledger.Nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	latest := map[string]*receiver.NodeSnapshot{}
	for _, p := range r.Ingest.Snapshots() {
		latest[p.Node] = &p
	}
	out := &query.Summary{At: time.Now().UTC(), Top: map[string][]query.TopWorkload{}}
	for _, n := range nodes {
		if node != "" && n.ID != node && n.Name != node {
			continue
		}
		one := query.NodeSummary{Node: n.ID, Name: n.Name, Cluster: n.Cluster, State: n.State, CPUs: n.CPUs, Nested: n.Nested != nil && node == ""}
		if p := latest[n.ID]; p != nil {
			one.From, one.To, one.CPUs, one.Parts, one.Total = p.From, p.To, p.CPUs, p.Parts, p.Total
			one.Rows = len(p.Rows) - countResiduals(p)
		}
		out.Nodes = append(out.Nodes, one)
	}
	if top == 0 {
		return out, nil
	}
	found := map[string][]candidate{}
	for i := range out.Nodes {
		if p := latest[out.Nodes[i].Node]; p != nil && !out.Nodes[i].Nested {
			addTop(found, &out.Nodes[i], p, top)
		}
	}
	return out, r.resolveNames(ctx, found, out.Top)
}

// residualIDs are the rows of a node that no job caused.
func residualIDs(node string) [2]batch.ShortID {
	system, _ := batch.ShortIDOf(workload.NewID(node, workload.System, ""))
	idle, _ := batch.ShortIDOf(workload.NewID(node, workload.Idle, ""))
	return [2]batch.ShortID{system, idle}
}

func countResiduals(p *receiver.NodeSnapshot) (n int) {
	none := residualIDs(p.Node)
	for i := range p.Rows {
		if slices.Contains(none[:], p.Rows[i].Workload) {
			n++
		}
	}
	return n
}

// addTop adds a node's rows to those that use most of each resource, of which it
// keeps so many.
func addTop(found map[string][]candidate, node *query.NodeSummary, p *receiver.NodeSnapshot, top int) {
	none, length := residualIDs(p.Node), p.To.Sub(p.From).Seconds()
	for i := range p.Rows {
		row := &p.Rows[i]
		if slices.Contains(none[:], row.Workload) {
			continue
		}
		for _, by := range v1.TopResources {
			v, q, ok := v1.TopValue(by, &row.Usage, length)
			list := found[by]
			if !ok || v <= 0 || len(list) == top && list[top-1].top.Value >= v {
				continue
			}
			at, _ := slices.BinarySearchFunc(list, v, func(p candidate, v float64) int { return cmp.Compare(v, p.top.Value) })
			list = slices.Insert(list, at, candidate{node, row, query.TopWorkload{Value: v, Quality: q}})
			found[by] = list[:min(len(list), top)]
		}
	}
}

// resolveNames finds what workloads are called.
func (r liveProvider) resolveNames(ctx context.Context, found map[string][]candidate, into map[string][]query.TopWorkload) error {
	wanted := map[*query.NodeSummary][]batch.ShortID{}
	for _, list := range found {
		for _, p := range list {
			if !slices.Contains(wanted[p.node], p.row.Workload) {
				wanted[p.node] = append(wanted[p.node], p.row.Workload)
			}
		}
	}
	names := map[*query.NodeSummary]map[batch.ShortID]batch.Name{}
	for node, shorts := range wanted {
		known, err := r.Ledger.Names(ctx, node.Node, shorts)
		if err != nil {
			return err
		}
		names[node] = known
	}
	for by, list := range found {
		for _, p := range list {
			b := p.top
			b.Node, b.NodeName, b.Cluster, b.Name = p.node.Node, p.node.Name, p.node.Cluster, names[p.node][p.row.Workload]
			into[by] = append(into[by], b)
		}
	}
	return nil
}
