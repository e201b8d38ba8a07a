package book

import (
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

type workloadRow struct {
	id                                                string
	kind, key, name, path, parent                     string
	job, username, project, namespace, pod, container string
	started, ended                                    int64
	exit                                              *int64
	at                                                int64 // end of the window that named it, ns
}

// bookName stores a name. Names of several streams may arrive in any order: an older name only
// fills in what is missing. An empty field erases nothing, but for the end of what was started again.
func (b *booking) bookName(n *batch.Name, node *bookedNode, through int64) error {
	short, ok := workload.ShortIDOf(n.ID)
	if !ok {
		return nil // not an id: no row can belong to it
	}
	w, ok, err := b.newWorkload(node, short)
	if !ok || err != nil {
		return err
	}
	var old workloadRow
	var first, last int64
	err = b.QueryRow(`SELECT wid, kind, key, name, path, parent, job, username, project, namespace, pod, container,
		started_ns, ended_ns, exit_code, named_ns, first_minute, last_minute FROM workload WHERE id = $1`, w.ID).
		Scan(&old.id, &old.kind, &old.key, &old.name, &old.path, &old.parent, &old.job, &old.username, &old.project,
			&old.namespace, &old.pod, &old.container, &old.started, &old.ended, &old.exit, &old.at, &first, &last)
	if err != nil {
		return err
	}
	if old.id != "" && old.id != string(n.ID) {
		return nil // two ids with the same prefix: the first keeps the rows
	}
	n = old.restrictToOwner(restrictJob(n, node.jobs))
	now := old.merge(n, through)
	if size := now.newText(&old); size > 0 {
		if ok, err = b.takeBytes(node, size); err != nil {
			return err
		}
		if !ok {
			n = &batch.Name{ID: n.ID, Kind: n.Kind, Parent: n.Parent, Started: n.Started, Ended: n.Ended, Exit: n.Exit}
			now = old.merge(n, through)
		}
	}
	if now.at != old.at || !now.isEqual(&old) {
		_, err = b.Exec(`UPDATE workload SET wid = $2, kind = $3, key = $4, name = $5, path = $6, parent = $7, job = $8, username = $9, project = $10,
			namespace = $11, pod = $12, container = $13, started_ns = $14, ended_ns = $15, exit_code = $16, named_ns = $17, rev = $18 WHERE id = $1`,
			w.ID, now.id, now.kind, now.key, now.name, now.path, now.parent, now.job, now.username, now.project,
			now.namespace, now.pod, now.container, now.started, now.ended, now.exit, now.at, b.Rev)
		if err != nil {
			return err
		}
	}
	b.NameWorkload(node.id, short, w.ID)
	if err := b.bookLabels(node, w.ID, n.Labels, through >= old.at); err != nil {
		return err
	}
	if err := markChanged(b.Tx, &old, &now, first, last); err != nil || n.Kind != workload.Pod && n.Kind != workload.Container {
		return err
	}
	if err := placeWorkload(b.Tx, w.ID); err != nil || now.kind == old.kind || n.Kind != workload.Pod {
		return err
	}
	// Containers that no status of a pod names, as its sandbox, may have been named before it.
	return placeChildren(b.Tx, node.id, now.id)
}

// markChanged marks the days as stale whose groups a changed workload belongs to.
func markChanged(t *db.Tx, old, now *workloadRow, first, last int64) error {
	if now.groupKeys() == old.groupKeys() || last == 0 {
		return nil
	}
	for day := first - first%schema.DayMinutes; day <= last && day < t.Day; day += schema.DayMinutes {
		if err := t.MarkStale(day); err != nil {
			return err
		}
	}
	return nil
}

// restrictJob drops what a job says of itself and cannot know: the pod that it is, which labels of
// Kubernetes name, and, on the node of jobs that send their own figures, its project. There every
// name is a job's word, whatever its kind.
func restrictJob(n *batch.Name, ofJobs bool) *batch.Name {
	isPlaced := slices.ContainsFunc(slices.Collect(maps.Keys(n.Labels)), func(k string) bool { return batch.CheckJobLabel(k) != nil })
	if !isPlaced && n.Project == "" || n.Kind != workload.Job && !ofJobs {
		return n
	}
	left := *n
	left.Labels = maps.Clone(n.Labels)
	maps.DeleteFunc(left.Labels, func(k, _ string) bool { return batch.CheckJobLabel(k) != nil })
	if ofJobs {
		left.Project = ""
	}
	return &left
}

// restrictToOwner drops the fields of n that only the owner of job w may set: a job keeps the user
// who started it, and names, projects and labels of other users are ignored. A numeric user is one
// whose name could not be looked up.
func (w *workloadRow) restrictToOwner(n *batch.Name) *batch.Name {
	if n.Kind != workload.Job || w.username == "" || n.User == "" || schema.Clean(n.User) == w.username || strings.Trim(w.username, "0123456789") == "" {
		return n
	}
	left := *n
	left.Name, left.Job, left.User, left.Project, left.Labels = "", "", "", "", nil
	return &left
}

// merge returns the row after a name of the given age.
func (w workloadRow) merge(n *batch.Name, through int64) workloadRow {
	newer := through >= w.at
	text := func(to *string, v string) {
		if v = schema.Clean(v); v != "" && (newer || *to == "") {
			*to = v
		}
	}
	instant := func(to *int64, t time.Time) {
		if v := schema.Nanos(t); v != 0 && (newer || *to == 0) {
			*to = v
		}
	}
	w.id = string(n.ID)
	if n.Kind != workload.Unknown {
		text(&w.kind, n.Kind.String())
	}
	text(&w.key, n.Key)
	if w.name == "" || !n.IsShortID() {
		text(&w.name, n.Name)
	}
	text(&w.path, n.Path)
	text(&w.parent, string(n.Parent))
	text(&w.job, n.Job)
	text(&w.username, n.User)
	text(&w.project, n.Project)
	text(&w.namespace, n.Labels[batch.LabelNamespace])
	text(&w.pod, n.Labels[batch.LabelPod])
	text(&w.container, n.Labels[batch.LabelContainer])
	instant(&w.started, n.Started)
	// A workload that is named after its end was started again, but for jobs of mete run: each start has a key of its own.
	if ended := schema.Nanos(n.Ended); n.Kind == workload.Job {
		instant(&w.ended, n.Ended)
	} else if newer && (ended != 0 || through > w.ended) {
		w.ended = ended
	}
	if n.Exit != nil && (newer || w.exit == nil) {
		code := int64(*n.Exit)
		w.exit = &code
	}
	w.at = max(w.at, through)
	return w
}

// isEqual reports whether two rows have the same content, whatever their age.
func (w *workloadRow) isEqual(o *workloadRow) bool {
	a, b := *w, *o
	same := a.exit == b.exit || a.exit != nil && b.exit != nil && *a.exit == *b.exit
	a.exit, b.exit, a.at, b.at = nil, nil, 0, 0
	return same && a == b
}

// newText returns the bytes of the texts of w that o has not.
func (w *workloadRow) newText(o *workloadRow) (n int) {
	texts := func(w *workloadRow) [9]string {
		return [...]string{w.key, w.name, w.path, w.job, w.username, w.project, w.namespace, w.pod, w.container}
	}
	for i, had := range texts(o) {
		if text := texts(w)[i]; text != had {
			n += len(text)
		}
	}
	return n
}

// groupKeys returns the columns by which group_day sums.
func (w *workloadRow) groupKeys() [5]string {
	return [...]string{w.namespace, w.job, w.username, w.project, w.kind}
}

// bookLabels stores labels. A newer set replaces the old one; an older one fills in missing labels;
// an empty one changes nothing.
func (b *booking) bookLabels(node *bookedNode, id int64, labels map[string]string, newer bool) error {
	if len(labels) == 0 {
		return nil
	}
	have, err := labelsOf(b.Tx, id)
	if err != nil {
		return err
	}
	want := cleanLabels(labels)
	if !newer {
		maps.Copy(want, have)
	}
	if maps.Equal(have, want) {
		return nil
	}
	size := 0
	for k, v := range want {
		if old, ok := have[k]; !ok || old != v {
			size += len(k) + len(v)
		}
	}
	if ok, err := b.takeBytes(node, size); !ok || err != nil {
		return err
	}
	if err := replaceLabels(b.Tx, id, have, want); err != nil {
		return err
	}
	_, err = b.Exec("UPDATE workload SET rev = $2 WHERE id = $1", id, b.Rev)
	return err
}

func labelsOf(t *db.Tx, id int64) (map[string]string, error) {
	have := map[string]string{}
	return have, t.Each(func(scan func(...any) error) error {
		var k, v string
		err := scan(&k, &v)
		have[k] = v
		return err
	}, "SELECT key, value FROM workload_label WHERE workload = $1", id)
}

func cleanLabels(labels map[string]string) map[string]string {
	clean := make(map[string]string, len(labels))
	for k, v := range labels {
		clean[schema.Clean(k)] = schema.Clean(v)
	}
	return clean
}

// replaceLabels replaces the labels that a workload has.
func replaceLabels(t *db.Tx, id int64, have, want map[string]string) error {
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if _, err := t.Exec("DELETE FROM workload_label WHERE workload = $1 AND key = $2", id, k); err != nil {
			return err
		}
	}
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		_, err := t.Exec("INSERT INTO workload_label (workload, key, value) VALUES ($1, $2, $3) ON CONFLICT (workload, key) DO UPDATE SET value = excluded.value", id, k, v)
		if err != nil {
			return err
		}
	}
	return nil
}

// noteUsed records that a workload has folded rows over a span.
func noteUsed(t *db.Tx, id int64, s schema.MinuteSpan) error {
	_, err := t.Exec(`UPDATE workload SET first_minute = CASE WHEN last_minute = 0 OR first_minute > $2 THEN $2 ELSE first_minute END,
		last_minute = CASE WHEN last_minute < $3 THEN $3 ELSE last_minute END
		WHERE id = $1 AND (last_minute = 0 OR first_minute > $2 OR last_minute < $3)`, id, s.First, s.Last)
	return err
}

// ReplaceName replaces the name of a workload.
func ReplaceName(t *db.Tx, id int64, w *replica.Workload) error {
	var old workloadRow
	var first, last int64
	err := t.QueryRow("SELECT namespace, job, username, project, kind, first_minute, last_minute FROM workload WHERE id = $1", id).
		Scan(&old.namespace, &old.job, &old.username, &old.project, &old.kind, &first, &last)
	if err != nil {
		return err
	}
	now := workloadRow{}.merge(w.Name, 0)
	now.namespace, now.pod, now.container, now.at = schema.Clean(w.Namespace), schema.Clean(w.Pod), schema.Clean(w.Container), schema.Nanos(w.Named)
	_, err = t.Exec(`UPDATE workload SET wid = $2, kind = $3, key = $4, name = $5, path = $6, parent = $7, job = $8, username = $9, project = $10,
		namespace = $11, pod = $12, container = $13, started_ns = $14, ended_ns = $15, exit_code = $16, named_ns = $17, rev = $18 WHERE id = $1`,
		id, now.id, now.kind, now.key, now.name, now.path, now.parent, now.job, now.username, now.project,
		now.namespace, now.pod, now.container, now.started, now.ended, now.exit, now.at, t.Rev)
	if err != nil {
		return err
	}
	if _, err := t.Exec("DELETE FROM workload_label WHERE workload = $1", id); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(w.Name.Labels)) {
		if _, err := t.Exec("INSERT INTO workload_label (workload, key, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", id, schema.Clean(k), schema.Clean(w.Name.Labels[k])); err != nil {
			return err
		}
	}
	return markChanged(t, &old, &now, first, last)
}
