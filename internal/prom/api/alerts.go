package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/prom/rule"
)

// object is a JSON object.
type object = map[string]any

// serveVisible answers for rules and alerts with those that the scope may see: alerts with
// the label of a cluster of the scope, the shipped rules, and rules with such an alert.
func serveVisible(h http.Handler, s query.Scope, w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	// The state of a rule is computed from its visible alerts, so always request them.
	q := r.URL.Query()
	bare := q.Get("exclude_alerts") == "true"
	q.Del("exclude_alerts")
	r.URL.RawQuery, r.Form = q.Encode(), nil
	r.Header.Del("Accept-Encoding")
	r.Header.Del("Accept")
	got := &recorder{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(got, r)
	var answer struct {
		Status    string `json:"status"`
		Data      object `json:"data,omitempty"`
		ErrorType string `json:"errorType,omitempty"`
		Error     string `json:"error,omitempty"`
	}
	if err := json.Unmarshal(got.body.Bytes(), &answer); err != nil {
		reject(w, http.StatusInternalServerError, "internal", "the answer cannot be read")
		return
	}
	if answer.Data != nil {
		if list, ok := answer.Data["alerts"]; ok {
			answer.Data["alerts"] = visible(s, list)
		}
		if list, ok := answer.Data["groups"]; ok {
			answer.Data["groups"] = visibleGroups(s, list, bare)
		}
	}
	write(w, got.status, answer)
}

// visible returns the alerts of a list that the scope may see.
func visible(s query.Scope, list any) []any {
	out := []any{}
	for _, one := range items(list) {
		labels, _ := one["labels"].(object)
		cluster, ok := labels[metric.Cluster].(string)
		if ok && len(s.Projects) == 0 && slices.Contains(s.Clusters, cluster) {
			out = append(out, one)
		}
	}
	return out
}

// visibleGroups returns the rule groups with at least one visible rule; bare omits the
// alerts of each rule.
func visibleGroups(s query.Scope, list any, bare bool) []any {
	out := []any{}
	for _, g := range items(list) {
		shipped := g["file"] == rule.File
		rules := []any{}
		for _, one := range items(g["rules"]) {
			// An error may name series outside the scope.
			delete(one, "lastError")
			if one["type"] == "alerting" {
				seen := visible(s, one["alerts"])
				one["alerts"], one["state"] = seen, stateOf(seen)
				if bare {
					delete(one, "alerts")
				}
				if len(seen) > 0 || shipped {
					rules = append(rules, one)
				}
				continue
			}
			if shipped {
				rules = append(rules, one)
			}
		}
		if file, ok := g["file"].(string); ok {
			g["file"] = filepath.Base(file)
		}
		g["rules"] = rules
		if len(rules) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// stateOf returns the state of a rule: the worst state of its alerts.
func stateOf(alerts []any) string {
	state := "inactive"
	for _, one := range items(alerts) {
		switch one["state"] {
		case "firing":
			return "firing"
		case "pending":
			state = "pending"
		}
	}
	return state
}

// items returns the objects of a list.
func items(list any) (out []object) {
	all, _ := list.([]any)
	for _, one := range all {
		if o, ok := one.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

// A recorder is an http.ResponseWriter that keeps the response in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
