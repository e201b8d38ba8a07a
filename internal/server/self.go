package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/ca"
)

// selfProvider answers jobs and pods about their own use.
type selfProvider struct{ *Server }

// Identify implements api.Selves.
func (s selfProvider) Identify(r *http.Request) (api.SelfCaller, error) {
	if text, ok := s.Authority.ForeignToken(r); ok {
		return s.identifyPod(r, text)
	}
	j, err := s.Authority.IdentifyJob(r)
	if err == nil {
		keepConnection(r, "jobs of "+j.Node, false)
	}
	if ca.IsUnidentified(err) {
		err = &api.UnauthenticatedError{Err: err}
	}
	return api.SelfCaller{Job: j}, err
}

// identifyPod returns the pod of the watched cluster that has a token.
func (s selfProvider) identifyPod(r *http.Request, text string) (api.SelfCaller, error) {
	if s.Pods == nil {
		err := fault.WithHint(fmt.Errorf("a pod's token, and this server watches no Kubernetes cluster: %w", fault.ErrDenied), "start the server with --kube-cluster, as docs/guide/kubernetes.md says")
		return api.SelfCaller{}, &api.UnauthenticatedError{Err: err}
	}
	p, err := s.Pods.Identify(r.Context(), addressOf(r.RemoteAddr).String(), text)
	switch {
	case err == nil:
		keepConnection(r, "pods of "+p.Namespace, false)
	case errors.Is(err, fault.ErrDenied):
		err = &api.UnauthenticatedError{Err: err}
	}
	return api.SelfCaller{Pod: p}, err
}

// Self implements api.Selves.
func (s selfProvider) Self(ctx context.Context, c api.SelfCaller) (*query.Self, error) {
	var out *query.Self
	var err error
	if c.Pod.UID != "" {
		out, err = s.Ledger.PodSelf(ctx, c.Pod)
	} else if out, err = s.Ledger.Self(ctx, c.Job.Node, c.Job.Workload); err == nil && out.Name.Name != "" {
		out.Parts = []workload.ID{out.ID}
	}
	if err != nil {
		return nil, err
	}
	s.addLatest(out)
	return out, nil
}

// addLatest adds what the parts used in the latest window of their node.
func (s selfProvider) addLatest(out *query.Self) {
	p, ok := s.Receiver.Snapshot(out.Node)
	if !ok || len(out.Parts) == 0 {
		return
	}
	parts := map[workload.ShortID]bool{}
	for _, id := range out.Parts {
		if short, ok := workload.ShortIDOf(id); ok {
			parts[short] = true
		}
	}
	own, _ := workload.ShortIDOf(out.ID)
	var sum live.Figures
	found := false
	for i := range p.Rows {
		r := &p.Rows[i]
		if !parts[r.Workload] {
			continue
		}
		found = true
		if r.Workload == own { // a sum has the pressure of its first term
			sum = r.Amounts.Plus(&sum)
		} else {
			sum = sum.Plus(&r.Amounts)
		}
	}
	if found {
		out.Latest = &live.NodeRates{Node: out.Node, Name: out.NodeName, Cluster: out.Cluster, From: p.From, To: p.To, CPUs: p.CPUs,
			Rows: []live.WorkloadRates{workloadRates(out.Name, &sum, p.To.Sub(p.From))}}
	}
}
