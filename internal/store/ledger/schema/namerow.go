package schema

import (
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// NameColumns are the columns of a workload that form its name, in the order of [NameRow.Targets].
const NameColumns = `w.wid, w.kind, w.key, w.name, w.path, w.parent, w.job, w.username, w.project, w.started_ns, w.ended_ns, w.exit_code,
	w.run, w.run_name, w.run_started_ns, w.run_ended_ns, w.run_exit`

// A NameRow scans a name from NameColumns.
type NameRow struct {
	name           batch.Name
	kind           string
	started, ended int64
	exit           *int64
	run            RunRow
}

func (r *NameRow) Targets() []any {
	n := &r.name
	return append([]any{&n.ID, &r.kind, &n.Key, &n.Name, &n.Path, &n.Parent, &n.Job, &n.User, &n.Project, &r.started, &r.ended, &r.exit}, r.run.Targets()...)
}

// Name returns the scanned name.
func (r *NameRow) Name() batch.Name {
	n := r.name
	if n.Kind.UnmarshalText([]byte(r.kind)) != nil {
		n.Kind = workload.Unknown
	}
	n.Started, n.Ended = FromNanos(r.started), FromNanos(r.ended)
	if r.exit != nil {
		code := int(*r.exit)
		n.Exit = &code
	}
	return n
}

// Run returns the run that the workload is a part of.
func (r *NameRow) Run() workload.Run { return r.run.Run() }

// A RunRow is what the row of a workload says of the run that it is a part of.
type RunRow struct {
	ID, Name             string
	Started, Ended, Exit int64 // ns; ns; -1 is not known
}

// Targets are where the columns of a run are scanned to.
func (r *RunRow) Targets() []any { return []any{&r.ID, &r.Name, &r.Started, &r.Ended, &r.Exit} }

// RunRowOf returns the row of a run.
func RunRowOf(r workload.Run) RunRow {
	out := RunRow{Clean(string(r.ID)), Clean(r.Name), Nanos(r.Started), Nanos(r.Ended), -1}
	if r.Exit != nil && *r.Exit >= 0 {
		out.Exit = int64(*r.Exit)
	}
	return out
}

// Run returns the run.
func (r *RunRow) Run() workload.Run {
	out := workload.Run{ID: workload.ID(r.ID), Name: r.Name, Started: FromNanos(r.Started), Ended: FromNanos(r.Ended)}
	if r.Exit >= 0 {
		out.Exit = new(int(r.Exit))
	}
	return out
}
