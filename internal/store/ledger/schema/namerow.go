package schema

import (
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// NameColumns are the columns of a workload that form its name, in the order of [NameRow.Targets].
const NameColumns = `w.wid, w.kind, w.key, w.name, w.path, w.parent, w.job, w.username, w.project, w.started_ns, w.ended_ns, w.exit_code`

// A NameRow scans a name from NameColumns.
type NameRow struct {
	name           batch.Name
	kind           string
	started, ended int64
	exit           *int64
}

func (r *NameRow) Targets() []any {
	n := &r.name
	return []any{&n.ID, &r.kind, &n.Key, &n.Name, &n.Path, &n.Parent, &n.Job, &n.User, &n.Project, &r.started, &r.ended, &r.exit}
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
