package server

import (
	"context"
	"net/http"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// asking answers jobs about themselves.
type asking struct{ *Server }

// Who implements api.Jobs.
func (s asking) Who(r *http.Request) (token.Job, error) {
	j, err := s.Authority.IdentifyJob(r)
	if ca.Unidentified(err) {
		err = &api.Stranger{Err: err}
	}
	return j, err
}

// Self implements api.Jobs.
func (s asking) Self(ctx context.Context, j token.Job) (*query.Self, error) {
	out, err := s.Ledger.Self(ctx, j.Node, j.Workload)
	if err != nil {
		return nil, err
	}
	short, _ := batch.ShortOf(j.Workload) // it was in a token
	p, ok := s.Ingest.LatestOf(j.Node)
	if !ok || out.Name.Name == "" {
		return out, nil
	}
	for i := range p.Rows {
		if p.Rows[i].Workload == short {
			out.Latest = &query.Latest{Node: j.Node, Name: out.NodeName, Cluster: out.Cluster, From: p.From, To: p.To, CPUs: p.CPUs,
				Rows: []query.LatestRow{{Name: out.Name, Usage: p.Rows[i].Usage}}}
		}
	}
	return out, nil
}
