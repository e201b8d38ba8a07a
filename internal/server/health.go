package server

import (
	"context"
	"slices"
	"time"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
)

// Alerts implements api.Live. A scope of clusters contains the alerts with the label of one
// of them; a scope with projects contains none, because alerts belong to clusters.
func (r liveProvider) Alerts(_ context.Context, s query.Scope) (out []query.Alert, err error) {
	now := time.Now()
	for _, rule := range r.alerts.AlertingRules() {
		for _, a := range rule.ActiveAlerts() {
			cluster := a.Labels.Get(metric.Cluster)
			if !s.All && (len(s.Projects) > 0 || !slices.Contains(s.Clusters, cluster)) {
				continue
			}
			out = append(out, query.Alert{Rule: rule.Name(), State: a.State.String(), Cluster: cluster, Labels: a.Labels.Map(),
				Annotations: a.Annotations.Map(), Since: a.ActiveAt.UTC(), Value: a.Value, SilencedBy: r.alerts.SilencedBy(a.Labels, now)})
		}
	}
	return out, nil
}

// Silences implements api.Live. A scope of clusters contains the silences that match only alerts of
// one of them, because the text of another one may name what is out of the scope.
func (r liveProvider) Silences(_ context.Context, s query.Scope) ([]query.Silence, error) {
	return slices.DeleteFunc(r.alerts.Silences(), func(one query.Silence) bool {
		return !s.All && (len(s.Projects) > 0 || !one.Matchers.Only(metric.Cluster, s.Clusters))
	}), nil
}

// ServerHealth implements api.Live.
func (r liveProvider) ServerHealth(ctx context.Context) (*query.ServerHealth, error) {
	ledger, err := r.Ledger.Stats(ctx)
	if err != nil {
		return nil, err
	}
	in := r.Receiver.Stats()
	return &query.ServerHealth{Violations: in.Violations, Conflicts: in.Conflicts, Refused: in.Invalid + in.Denied + in.Unavailable + in.RateLimited,
		Missed: in.MetricsFailed, Queue: in.Queue, Hours: ledger.Hours, Days: ledger.Days, Bytes: ledger.Bytes}, nil
}
