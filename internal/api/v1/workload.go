package v1

import (
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
)

// A Workload is a workload as a ledger knows it.
type Workload struct {
	ID      workload.ID       `json:"workload" doc:"id: 26 characters of base32"`
	Kind    workload.Kind     `json:"kind"`
	Name    string            `json:"name"`
	Job     string            `json:"job" doc:"name of its job; empty if it belongs to none"`
	User    string            `json:"user"`
	Project string            `json:"project"`
	Node    string            `json:"node" doc:"id of the node"`
	Cluster string            `json:"cluster"`
	Key     string            `json:"key" doc:"source of the id: a container id, a pod UID, a path"`
	Path    string            `json:"path" doc:"its control group"`
	Parent  workload.ID       `json:"parent" doc:"id of the workload that contains it; empty if none does"`
	Labels  map[string]string `json:"labels"`
	Started *time.Time        `json:"started_at" doc:"null if it was not reported"`
	Ended   *time.Time        `json:"ended_at" doc:"null while it runs, or if it was not reported"`
	Exit    *int              `json:"exit_code" doc:"null if it was not reported"`
	First   *time.Time        `json:"first_at" doc:"start of the first minute with use in the range"`
	Last    *time.Time        `json:"last_at" doc:"end of the last minute with use in the range"`
}

// ListKey implements [Element].
func (Workload) ListKey() string { return "workloads" }

// WorkloadOf makes a Workload.
func WorkloadOf(w *query.Workload) Workload {
	return Workload{ID: w.ID, Kind: w.Kind, Name: w.Name.Name, Job: w.Job, User: w.User, Project: w.Project, Node: w.Node, Cluster: w.Cluster, Key: w.Key, Path: w.Path,
		Parent: w.Parent, Labels: orEmpty(w.Labels), Started: timeOrNil(w.Started), Ended: timeOrNil(w.Ended), Exit: w.Exit, First: timeOrNil(w.First), Last: timeOrNil(w.Last)}
}

// orEmpty is a map as JSON has it: an object even where it is nil.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
