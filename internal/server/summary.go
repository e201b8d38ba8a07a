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

// A place is a row of a node's latest window.
type place struct {
	node *query.Present
	at   *receiver.PresentRow
	busy query.Busy
}

// Summary implements api.Live. Only the busiest workloads are looked up by name,
// so that it costs little however many there are.
func (r live) Summary(ctx context.Context, s query.Scope, node string, top int) (*query.Summary, error) {
	nodes, err := r.Ledger.Nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	latest := map[string]*receiver.Present{}
	for _, p := range r.Ingest.Latest() {
		latest[p.Node] = &p
	}
	out := &query.Summary{At: time.Now().UTC(), Top: map[string][]query.Busy{}}
	for _, n := range nodes {
		if node != "" && n.ID != node && n.Name != node {
			continue
		}
		one := query.Present{Node: n.ID, Name: n.Name, Cluster: n.Cluster, State: n.State, CPUs: n.CPUs, Nested: n.Nested != nil && node == ""}
		if p := latest[n.ID]; p != nil {
			one.From, one.To, one.CPUs, one.Parts, one.Total = p.From, p.To, p.CPUs, p.Parts, p.Total
			one.Rows = len(p.Rows) - residuals(p)
		}
		out.Nodes = append(out.Nodes, one)
	}
	if top == 0 {
		return out, nil
	}
	found := map[string][]place{}
	for i := range out.Nodes {
		if p := latest[out.Nodes[i].Node]; p != nil && !out.Nodes[i].Nested {
			busiest(found, &out.Nodes[i], p, top)
		}
	}
	return out, r.name(ctx, found, out.Top)
}

// noJobs are the rows of a node that no job caused.
func noJobs(node string) [2]batch.Short {
	system, _ := batch.ShortOf(workload.NewID(node, workload.System, ""))
	idle, _ := batch.ShortOf(workload.NewID(node, workload.Idle, ""))
	return [2]batch.Short{system, idle}
}

func residuals(p *receiver.Present) (n int) {
	none := noJobs(p.Node)
	for i := range p.Rows {
		if slices.Contains(none[:], p.Rows[i].Workload) {
			n++
		}
	}
	return n
}

// busiest adds a node's rows to those that use most of each resource, of which it
// keeps so many.
func busiest(found map[string][]place, node *query.Present, p *receiver.Present, top int) {
	none, length := noJobs(p.Node), p.To.Sub(p.From).Seconds()
	for i := range p.Rows {
		row := &p.Rows[i]
		if slices.Contains(none[:], row.Workload) {
			continue
		}
		for _, by := range v1.Tops {
			v, q, ok := v1.BusyBy(by, &row.Usage, length)
			list := found[by]
			if !ok || v <= 0 || len(list) == top && list[top-1].busy.Value >= v {
				continue
			}
			at, _ := slices.BinarySearchFunc(list, v, func(p place, v float64) int { return cmp.Compare(v, p.busy.Value) })
			list = slices.Insert(list, at, place{node, row, query.Busy{Value: v, Quality: q}})
			found[by] = list[:min(len(list), top)]
		}
	}
}

// name finds what workloads are called.
func (r live) name(ctx context.Context, found map[string][]place, into map[string][]query.Busy) error {
	wanted := map[*query.Present][]batch.Short{}
	for _, list := range found {
		for _, p := range list {
			if !slices.Contains(wanted[p.node], p.at.Workload) {
				wanted[p.node] = append(wanted[p.node], p.at.Workload)
			}
		}
	}
	names := map[*query.Present]map[batch.Short]batch.Name{}
	for node, shorts := range wanted {
		known, err := r.Ledger.Names(ctx, node.Node, shorts)
		if err != nil {
			return err
		}
		names[node] = known
	}
	for by, list := range found {
		for _, p := range list {
			b := p.busy
			b.Node, b.NodeName, b.Cluster, b.Name = p.node.Node, p.node.Name, p.node.Cluster, names[p.node][p.at.Workload]
			into[by] = append(into[by], b)
		}
	}
	return nil
}
