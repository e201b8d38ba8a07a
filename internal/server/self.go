package server

import (
	"context"
	"net/http"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// jobProvider answers jobs about their own use.
type jobProvider struct{ *Server }

// Identify implements api.Jobs.
func (s jobProvider) Identify(r *http.Request) (token.Job, error) {
	j, err := s.Authority.IdentifyJob(r)
	if err == nil {
		keepConnection(r, "jobs of "+j.Node, false)
	}
	if ca.IsUnidentified(err) {
		err = &api.UnauthenticatedError{Err: err}
	}
	return j, err
}

// Self implements api.Jobs.
func (s jobProvider) Self(ctx context.Context, j token.Job) (*query.Self, error) {
	out, err := s.Ledger.Self(ctx, j.Node, j.Workload)
	if err != nil {
		return nil, err
	}
	short, _ := workload.ShortIDOf(j.Workload) // valid, because it is from a token
	p, ok := s.Receiver.Snapshot(j.Node)
	if !ok || out.Name.Name == "" {
		return out, nil
	}
	for i := range p.Rows {
		if p.Rows[i].Workload == short {
			out.Latest = &live.NodeRates{Node: j.Node, Name: out.NodeName, Cluster: out.Cluster, From: p.From, To: p.To, CPUs: p.CPUs,
				Rows: []live.WorkloadRates{workloadRates(out.Name, &p.Rows[i].Amounts, p.To.Sub(p.From))}}
		}
	}
	return out, nil
}
