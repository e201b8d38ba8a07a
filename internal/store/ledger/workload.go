package ledger

import (
	"maps"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// workload finds a workload, and makes room for it where it is new: what it is
// called may come later.
func (t *txn) workload(node int64, short batch.ShortID) (workloadRef, error) {
	k := workloadKey{node, short}
	if w, ok := t.found[k]; ok {
		return w, nil
	}
	// Another program may have named it since: then it is asked for once more.
	if w, ok := t.l.workloads[k]; ok {
		return w, nil
	}
	var w workloadRef
	var length int64
	// The update changes nothing; it makes RETURNING answer also where the row
	// is there.
	err := t.queryRow(`INSERT INTO workload (node, short, rev) VALUES ($1, $2, $3)
		ON CONFLICT (node, short) DO UPDATE SET short = excluded.short RETURNING id, length(wid)`, node, int64(short), t.rev).
		scan(&w.id, &length)
	w.named = length > 0
	t.found[k] = w
	return w, err
}

// Labels of Kubernetes that say where a container belongs.
const (
	labelNamespace = "io.kubernetes.pod.namespace"
	labelPod       = "io.kubernetes.pod.name"
	labelContainer = "io.kubernetes.container.name"
)

// A named is the row of a workload.
type named struct {
	id                                                string
	kind, key, name, path, parent                     string
	job, username, project, namespace, pod, container string
	started, ended                                    int64
	exit                                              *int64
	at                                                int64 // up to when what named it was booked
}

// name keeps what a name says. Names of several streams may come in any order:
// one that is older than what is known only fills in what is not. Nothing is
// erased by a field that is empty.
func (b *booking) name(n *batch.Name, node, through int64) error {
	short, ok := batch.ShortIDOf(n.ID)
	if !ok {
		return nil // not an id: no row can belong to it
	}
	w, err := b.workload(node, short)
	if err != nil {
		return err
	}
	var old named
	var first, last int64
	err = b.queryRow(`SELECT wid, kind, key, name, path, parent, job, username, project, namespace, pod, container,
		started_ns, ended_ns, exit_code, named_ns, first_minute, last_minute FROM workload WHERE id = $1`, w.id).
		scan(&old.id, &old.kind, &old.key, &old.name, &old.path, &old.parent, &old.job, &old.username, &old.project,
			&old.namespace, &old.pod, &old.container, &old.started, &old.ended, &old.exit, &old.at, &first, &last)
	if err != nil {
		return err
	}
	if old.id != "" && old.id != string(n.ID) {
		return nil // two ids that begin alike: the first keeps the rows
	}
	n = old.own(n)
	now := old.with(n, through)
	if now.at != old.at || !now.equal(&old) {
		_, err = b.exec(`UPDATE workload SET wid = $2, kind = $3, key = $4, name = $5, path = $6, parent = $7, job = $8, username = $9, project = $10,
			namespace = $11, pod = $12, container = $13, started_ns = $14, ended_ns = $15, exit_code = $16, named_ns = $17, rev = $18 WHERE id = $1`,
			w.id, now.id, now.kind, now.key, now.name, now.path, now.parent, now.job, now.username, now.project,
			now.namespace, now.pod, now.container, now.started, now.ended, now.exit, now.at, b.rev)
		if err != nil {
			return err
		}
	}
	b.found[workloadKey{node, short}] = workloadRef{w.id, true}
	if err := b.labels(w.id, n.Labels, through >= old.at); err != nil {
		return err
	}
	if now.group() == old.group() || last == 0 {
		return nil
	}
	for day := first - first%dayMinutes; day <= last && day < b.Day; day += dayMinutes {
		if err := b.stale(day); err != nil {
			return err
		}
	}
	return nil
}

// own returns what of a name may be said of w: a job stays that of the user who began
// it, and what another one calls it, and is to pay for, is not heard. A number is that
// of a user whose name could not be looked up.
func (w *named) own(n *batch.Name) *batch.Name {
	if n.Kind != workload.Job || w.username == "" || n.User == "" || clean(n.User) == w.username || strings.Trim(w.username, "0123456789") == "" {
		return n
	}
	left := *n
	left.Name, left.Job, left.User, left.Project, left.Labels = "", "", "", "", nil
	return &left
}

// with is the row after a name of the given age.
func (w named) with(n *batch.Name, through int64) named {
	newer := through >= w.at
	text := func(to *string, v string) {
		if v = clean(v); v != "" && (newer || *to == "") {
			*to = v
		}
	}
	instant := func(to *int64, t time.Time) {
		if v := nano(t); v != 0 && (newer || *to == 0) {
			*to = v
		}
	}
	w.id = string(n.ID)
	if n.Kind != workload.Unknown {
		text(&w.kind, n.Kind.String())
	}
	text(&w.key, n.Key)
	text(&w.name, n.Name)
	text(&w.path, n.Path)
	text(&w.parent, string(n.Parent))
	text(&w.job, n.Job)
	text(&w.username, n.User)
	text(&w.project, n.Project)
	text(&w.namespace, n.Labels[labelNamespace])
	text(&w.pod, n.Labels[labelPod])
	text(&w.container, n.Labels[labelContainer])
	instant(&w.started, n.Started)
	instant(&w.ended, n.Ended)
	if n.Exit != nil && (newer || w.exit == nil) {
		code := int64(*n.Exit)
		w.exit = &code
	}
	w.at = max(w.at, through)
	return w
}

// equal reports whether two rows say the same, whenever they were told.
func (w *named) equal(o *named) bool {
	a, b := *w, *o
	same := a.exit == b.exit || a.exit != nil && b.exit != nil && *a.exit == *b.exit
	a.exit, b.exit, a.at, b.at = nil, nil, 0, 0
	return same && a == b
}

// group is what group_day sums by.
func (w *named) group() [5]string {
	return [...]string{w.namespace, w.job, w.username, w.project, w.kind}
}

// labels keeps labels. The newest set replaces the one before; an older one
// fills in what is not there, and an empty one says nothing.
func (b *booking) labels(id int64, labels map[string]string, newer bool) error {
	if len(labels) == 0 {
		return nil
	}
	have := map[string]string{}
	err := each(b.ctx, b.tx, func(scan func(...any) error) error {
		var k, v string
		err := scan(&k, &v)
		have[k] = v
		return err
	}, "SELECT key, value FROM workload_label WHERE workload = $1", id)
	if err != nil {
		return b.l.d.fault(err)
	}
	want := make(map[string]string, len(labels))
	for k, v := range labels {
		want[clean(k)] = clean(v)
	}
	if !newer {
		maps.Copy(want, have)
	}
	if maps.Equal(have, want) {
		return nil
	}
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if _, err := b.exec("DELETE FROM workload_label WHERE workload = $1 AND key = $2", id, k); err != nil {
			return err
		}
	}
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		_, err := b.exec("INSERT INTO workload_label (workload, key, value) VALUES ($1, $2, $3) ON CONFLICT (workload, key) DO UPDATE SET value = excluded.value", id, k, v)
		if err != nil {
			return err
		}
	}
	_, err = b.exec("UPDATE workload SET rev = $2 WHERE id = $1", id, b.rev)
	return err
}

// used notes that a workload has folded rows over a span.
func (t *txn) used(id int64, s span) error {
	_, err := t.exec(`UPDATE workload SET first_minute = CASE WHEN last_minute = 0 OR first_minute > $2 THEN $2 ELSE first_minute END,
		last_minute = CASE WHEN last_minute < $3 THEN $3 ELSE last_minute END
		WHERE id = $1 AND (last_minute = 0 OR first_minute > $2 OR last_minute < $3)`, id, s.first, s.last)
	return err
}
