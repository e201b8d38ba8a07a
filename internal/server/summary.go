package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A candidate is a row of a node's latest window that may be among the busiest.
type candidate struct {
	node   *live.NodePresent
	row    *receiver.SnapshotRow
	figure live.Figure // by which it is
}

// Summary implements api.Live. It looks up the names of the busiest workloads only, so that
// its cost hardly depends on how many workloads there are.
func (r liveProvider) Summary(ctx context.Context, s query.Scope, node string, top int) (*live.Summary, error) {
	nodes, err := r.Ledger.Nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	latest := map[string]*receiver.NodeSnapshot{}
	for _, p := range r.Receiver.Snapshots() {
		latest[p.Node] = &p
	}
	out := live.NewSummary(time.Now())
	for i := range nodes {
		n := &nodes[i]
		if node != "" && n.ID != node && n.Name != node {
			continue
		}
		one := live.NodePresent{Node: n.ID, Name: n.Name, Cluster: n.Cluster, State: n.State, Nested: n.Nested != nil && node == ""}
		one.CPUs = n.CPUs
		if p := latest[n.ID]; p != nil {
			from, to := p.From.UTC(), p.To.UTC()
			one.From, one.To, one.Present = &from, &to, p.Present
		}
		out.Add(&one)
	}
	if top == 0 {
		return out, nil
	}
	var found [len(live.TopKeys)][]candidate
	for i := range out.Nodes {
		if p := latest[out.Nodes[i].Node]; p != nil && !out.Nodes[i].Nested {
			for k, key := range live.TopKeys {
				found[k] = addTop(found[k], key, &out.Nodes[i], p, top)
			}
		}
	}
	out.Top, err = r.resolveNames(ctx, found)
	return out, err
}

// addTop adds the rows of a node to the list of the busiest by a key of [live.TopKeys], and
// returns the first top of them.
func addTop(list []candidate, key string, node *live.NodePresent, p *receiver.NodeSnapshot, top int) []candidate {
	length := p.To.Sub(p.From).Seconds()
	if length <= 0 {
		return list
	}
	for i := range p.Rows {
		row := &p.Rows[i]
		f := row.Amounts.Top(key)
		f.Value /= length
		if row.Residual || f.Quality == usage.Absent || f.Value <= 0 || len(list) == top && list[top-1].figure.Value >= f.Value {
			continue
		}
		at, _ := slices.BinarySearchFunc(list, f.Value, func(c candidate, v float64) int { return cmp.Compare(v, c.figure.Value) })
		list = slices.Insert(list, at, candidate{node, row, f})
		list = list[:min(len(list), top)]
	}
	return list
}

// resolveNames returns the busiest workloads, by their keys, with their names in the ledger.
func (r liveProvider) resolveNames(ctx context.Context, found [len(live.TopKeys)][]candidate) (map[string][]live.TopWorkload, error) {
	wanted := map[*live.NodePresent][]workload.ShortID{}
	for _, list := range found {
		for _, c := range list {
			if !slices.Contains(wanted[c.node], c.row.Workload) {
				wanted[c.node] = append(wanted[c.node], c.row.Workload)
			}
		}
	}
	names := map[*live.NodePresent]map[workload.ShortID]batch.Name{}
	for node, shorts := range wanted {
		known, err := r.Ledger.Names(ctx, node.Node, shorts)
		if err != nil {
			return nil, err
		}
		names[node] = known
	}
	out := map[string][]live.TopWorkload{}
	for k, list := range found {
		for _, c := range list {
			n := names[c.node][c.row.Workload]
			out[live.TopKeys[k]] = append(out[live.TopKeys[k]], live.TopWorkload{ID: n.ID, Kind: n.Kind, Name: n.Name, Job: n.Job,
				Node: c.node.Name, Cluster: c.node.Cluster, Value: live.Round(c.figure.Value), Quality: c.figure.Quality})
		}
	}
	return out, nil
}
