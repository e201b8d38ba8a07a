package v1

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
)

// An Alert is an alert that is pending or fires.
type Alert struct {
	Rule        string            `json:"rule" doc:"name of the rule"`
	State       string            `json:"state" doc:"pending or firing" enum:"pending,firing"`
	Cluster     string            `json:"cluster" doc:"cluster that it is about; empty where it is about none in particular"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations" doc:"what it means and what to do, in words"`
	Since       *time.Time        `json:"since" doc:"since when the condition holds"`
	Value       string            `json:"value" doc:"value of the condition, as Prometheus writes numbers"`
	SilencedBy  []string          `json:"silenced_by" csv:"-" doc:"ids of the silences that apply to it: receivers are not notified of it" nullable:"false"`
}

// ListKey implements [Element].
func (Alert) ListKey() string { return "alerts" }

// AlertOf makes an Alert.
func AlertOf(a *query.Alert) Alert {
	return Alert{Rule: a.Rule, State: a.State, Cluster: a.Cluster, Labels: orEmpty(a.Labels), Annotations: orEmpty(a.Annotations), Since: timeOrNil(a.Since),
		Value: strconv.FormatFloat(a.Value, 'g', -1, 64), SilencedBy: append([]string{}, a.SilencedBy...)}
}

// SortAlerts sorts alerts: firing before pending, as these words sort, then by rule, cluster and labels.
func SortAlerts(list []query.Alert) {
	slices.SortFunc(list, func(a, b query.Alert) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(LabelsText(a.Labels), LabelsText(b.Labels)))
	})
}
