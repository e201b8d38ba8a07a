package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
)

// A liveProvider answers what the nodes do at present, from their latest windows and the
// names in the ledger.
type liveProvider struct{ *Server }

// EachLatest implements api.Live.
func (r liveProvider) EachLatest(ctx context.Context, s query.Scope, after string, f func(*live.NodeRates) bool) error {
	nodes, err := r.Ledger.Nodes(ctx, s)
	if err != nil {
		return err
	}
	seen := make(map[string]*query.Node, len(nodes))
	for i := range nodes {
		seen[nodes[i].ID] = &nodes[i]
	}
	for _, p := range r.Receiver.Snapshots() { // by id
		n := seen[p.Node]
		if n == nil || p.Node <= after {
			continue
		}
		shorts := make([]workload.ShortID, len(p.Rows))
		for i := range p.Rows {
			shorts[i] = p.Rows[i].Workload
		}
		names, err := r.Ledger.Names(ctx, p.Node, shorts)
		if err != nil {
			return err
		}
		l := live.NodeRates{Node: n.ID, Name: n.Name, Cluster: n.Cluster, From: p.From.UTC(), To: p.To.UTC(), CPUs: p.CPUs, Rows: make([]live.WorkloadRates, len(p.Rows))}
		for i := range p.Rows {
			l.Rows[i] = workloadRates(names[p.Rows[i].Workload], &p.Rows[i].Amounts, p.To.Sub(p.From))
		}
		if !f(&l) {
			break
		}
	}
	return nil
}

// workloadRates returns the rates of a workload that used these amounts in a window of that length.
func workloadRates(n batch.Name, amounts *live.Figures, length time.Duration) live.WorkloadRates {
	out := live.WorkloadRates{ID: n.ID, Kind: n.Kind, Name: n.Name, Job: n.Job, Parent: n.Parent}
	out.Rates, out.Quality = amounts.Rates(length)
	return out
}
