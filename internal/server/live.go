package server

import (
	"context"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
)

// liveProvider is what the nodes do at present: their latest windows, with the names
// of the ledger.
type liveProvider struct{ *Server }

// Latest implements api.Live.
func (r liveProvider) Latest(ctx context.Context, s query.Scope) ([]query.LatestWindow, error) {
	nodes, err := r.Ledger.Nodes(ctx, s)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]query.Node, len(nodes))
	for _, n := range nodes {
		seen[n.ID] = n
	}
	var out []query.LatestWindow
	for _, p := range r.Ingest.Snapshots() {
		n, ok := seen[p.Node]
		if !ok {
			continue
		}
		l := query.LatestWindow{Node: n.ID, Name: n.Name, Cluster: n.Cluster, From: p.From, To: p.To, CPUs: p.CPUs}
		shorts := make([]batch.ShortID, len(p.Rows))
		for i := range p.Rows {
			shorts[i] = p.Rows[i].Workload
		}
		names, err := r.Ledger.Names(ctx, p.Node, shorts)
		if err != nil {
			return nil, err
		}
		for i := range p.Rows {
			l.Rows = append(l.Rows, query.LatestRow{Name: names[p.Rows[i].Workload], Usage: p.Rows[i].Usage})
		}
		out = append(out, l)
	}
	return out, nil
}
