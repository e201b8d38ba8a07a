package book

import (
	"errors"
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
	known                                             int64 // when what it is counted under was known first, ns

	run schema.RunRow // that it is a part of

	from, first, last int64 // first minute of the version, and the first and last folded one with use
}

// nameColumns are the columns of a workload's row in the order of [workloadRow.targets].
const nameColumns = `wid, kind, key, name, path, parent, job, username, project, namespace, pod, container,
	started_ns, ended_ns, exit_code, named_ns, known_ns, from_minute, first_minute, last_minute,
	run, run_name, run_started_ns, run_ended_ns, run_exit`

func (w *workloadRow) targets() []any {
	return append([]any{&w.id, &w.kind, &w.key, &w.name, &w.path, &w.parent, &w.job, &w.username, &w.project, &w.namespace, &w.pod, &w.container,
		&w.started, &w.ended, &w.exit, &w.at, &w.known, &w.from, &w.first, &w.last}, w.run.Targets()...)
}

// store writes what the row says of a workload to that of a version.
func (w *workloadRow) store(t *db.Tx, id int64) error {
	_, err := t.Exec(`UPDATE workload SET wid = $2, kind = $3, key = $4, name = $5, path = $6, parent = $7, job = $8, username = $9, project = $10,
		namespace = $11, pod = $12, container = $13, started_ns = $14, ended_ns = $15, exit_code = $16, named_ns = $17, known_ns = $18, rev = $19,
		run = $20, run_name = $21, run_started_ns = $22, run_ended_ns = $23, run_exit = $24 WHERE id = $1`,
		id, w.id, w.kind, w.key, w.name, w.path, w.parent, w.job, w.username, w.project,
		w.namespace, w.pod, w.container, w.started, w.ended, w.exit, w.at, w.known, t.Rev,
		w.run.ID, w.run.Name, w.run.Started, w.run.Ended, w.run.Exit)
	return err
}

// storeOthers writes to the other versions of a workload what all have in common. Unless the row is a new version, it
// fills in what they lack.
func (w *workloadRow) storeOthers(t *db.Tx, of db.Workload, old *workloadRow) error {
	if w.kind == workload.SlurmStep.String() || w.kind == workload.SlurmJob.String() {
		return nil // the versions are of several jobs
	}
	// A volume without a claim has no namespace: that is known.
	fills := w.from == old.from && w.kind != workload.Volume.String() && w.fills(old)
	if !of.HasVersions() || w.common() == old.common() && !fills {
		return nil
	}
	ids, err := t.Ints("SELECT id FROM workload WHERE (id = $1 OR version_of = $1 AND version_of <> 0) AND id <> $2", of.ID, of.Latest())
	if err != nil {
		return err
	}
	for _, id := range ids {
		var was workloadRow
		if err := t.QueryRow("SELECT "+nameColumns+" FROM workload WHERE id = $1", id).Scan(was.targets()...); err != nil {
			return err
		}
		is := *w
		is.from, is.first, is.last = was.from, was.first, was.last
		for i, v := range was.counted() {
			if *v != "" || !fills {
				*is.counted()[i] = *v
			}
		}
		if err := errors.Join(is.store(t, id), markChanged(t, &was, &is)); err != nil {
			return err
		}
	}
	return nil
}

// common returns what all versions of a workload have in common.
func (w *workloadRow) common() workloadRow {
	c := *w
	c.exit, c.at, c.from, c.first, c.last = nil, 0, 0, 0, 0
	if w.exit != nil {
		c.first, c.last = *w.exit, 1 // only to compare them
	}
	for _, v := range c.counted() {
		*v = ""
	}
	return c
}

// fills reports whether the row has something to count by that another one has not.
func (w *workloadRow) fills(o *workloadRow) bool {
	was := o.counted()
	for i, v := range w.counted() {
		if *v != "" && *was[i] == "" {
			return true
		}
	}
	return false
}

// counted returns the columns by which group_day sums.
func (w *workloadRow) counted() [5]*string {
	return [...]*string{&w.namespace, &w.job, &w.username, &w.project, &w.kind}
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
	id := w.Latest()
	if err := b.QueryRow("SELECT "+nameColumns+" FROM workload WHERE id = $1", id).Scan(old.targets()...); err != nil {
		return err
	}
	if old.id != "" && old.id != string(n.ID) {
		return nil // two ids with the same prefix: the first keeps the rows
	}
	n = old.restrictToOwner(restrictJob(n, node.jobs))
	now := old.merge(n, through)
	newer := through >= old.at
	labels, err := b.newLabels(id, n.Labels, newer)
	if err != nil {
		return err
	}
	if size := now.newText(&old); size > 0 {
		if ok, err = b.takeBytes(node, size); err != nil {
			return err
		}
		if !ok {
			n = &batch.Name{ID: n.ID, Kind: n.Kind, Parent: n.Parent, Started: n.Started, Ended: n.Ended, Exit: n.Exit}
			now = old.merge(n, through)
		}
	}
	if size := labels.newText(); size > 0 {
		if ok, err := b.takeBytes(node, size); err != nil {
			return err
		} else if !ok {
			labels = labelChange{}
		}
	}
	at := max(through, node.through)
	relabeled := newer && len(labels.have) > 0 && labels.isChange()
	placed, err := b.place(node, id, &now, &labels)
	if err != nil {
		return err
	}
	used := through
	if ended := schema.Nanos(n.Ended); ended != 0 {
		used = min(used, ended)
	}
	run, err := findSlurm(b.Tx, node.id, &now, used)
	if err == nil && run.job != nil {
		err = run.set(b.Tx, id, &now, &labels, used)
	}
	switch {
	case err != nil:
		return err
	case placed && old.namespace == "":
		now.known = at
	case run.job != nil && (!run.again || old.isLater(at)): // a run has one version, and its steps are parts of it
	case run.again || old.isRecounted(&now, placed && labels.isChange() || !placed && relabeled, through, at) && now.hasVersions() && !node.jobs:
		if ok, err = b.takeWorkload(node); err != nil {
			return err
		}
		if !ok { // what is booked stays where it is
			if run.again {
				now = old
			}
			for i, v := range now.counted() {
				*v = *old.counted()[i]
			}
			labels = labelChange{}
			break
		}
		if id, w, err = addVersion(b.Tx, node.id, short, w, &now, &labels, at); err != nil {
			return err
		}
	}
	if now.at != old.at || !now.isEqual(&old) {
		if err := errors.Join(now.store(b.Tx, id), now.storeOthers(b.Tx, w, &old)); err != nil {
			return err
		}
	}
	b.NameWorkload(node.id, short, w)
	if err := labels.store(b.Tx, id); err != nil {
		return err
	}
	if err := markChanged(b.Tx, &old, &now); err != nil || now.kind == old.kind {
		return err
	}
	if n.Kind == workload.SlurmJob {
		return nameSlurmSteps(b.Tx, node.id, now.id, at) // its job may have come after them and before it
	} else if n.Kind != workload.Pod {
		return nil
	}
	// Containers that no status of a pod names, as its sandbox, may have been named before it.
	return placeChildren(b.Tx, node.id, now.id, at)
}

// firstSight is how long after a workload is known first a change is of its first version.
const firstSight = int64(time.Minute)

// isRecounted reports whether a change of a version that is seen at an instant makes another version, so that what was
// counted under the old one stays there. A change soon after first sight does not, nor one of a version that begins
// after all that is booked of the node, nor values in the place of none. relabeled says that labels change; seen and
// end, the end of what is booked, are in ns.
func (w *workloadRow) isRecounted(now *workloadRow, relabeled bool, seen, end int64) bool {
	if w.id == "" || seen <= w.known+firstSight || w.isLater(end) {
		return false
	}
	was, is := *w, *now
	if isNumeric(was.username) {
		was.username = "" // not known
	}
	for i, v := range was.counted() {
		relabeled = relabeled || *v != "" && *v != *is.counted()[i]
	}
	return relabeled
}

// isLater reports whether a version begins after everything that is booked of the node.
func (w *workloadRow) isLater(end int64) bool { return end <= w.from*int64(time.Minute) }

// hasVersions reports whether the workload can have several versions. A run is of one job and one user as a whole, and idle
// energy and the system are not of a job.
func (w *workloadRow) hasVersions() bool {
	var k workload.Kind
	_ = k.UnmarshalText([]byte(w.kind)) // unknown: not known yet
	return k != workload.Unknown && !k.IsRun() && k != workload.Idle && k != workload.System
}

// versionsPerDay is how many versions of a workload may begin within a day, before the next one begins with the next day.
const versionsPerDay = 24

// addVersion adds a version of a workload after the latest one, and returns its id, and the workload with it. It begins with
// the next quarter of an hour, or with the next day after many of them. No row of that time can have been booked: at is the
// end of what was booked of the node, or later. Labels are stored by the caller.
func addVersion(t *db.Tx, node int64, short workload.ShortID, w db.Workload, now *workloadRow, labels *labelChange, at int64) (id int64, with db.Workload, err error) {
	if labels.want == nil {
		if labels.want, err = labelsOf(t, w.Latest()); err != nil {
			return id, w, err
		}
	}
	labels.have = nil // the version has none yet
	minutes := (at + int64(time.Minute) - 1) / int64(time.Minute)
	next := func(unit int64) int64 { return (minutes + unit - 1) / unit * unit }
	now.from, now.first, now.last = next(replica.VersionMinutes), 0, 0
	if w.CountSince(schema.DayOf(now.from)) >= versionsPerDay {
		now.from = next(schema.DayMinutes)
	}
	if id, err = t.Version(node, short, now.from); err != nil {
		return id, w, err
	}
	with, _, err = t.KnownWorkload(node, short)
	return id, with, errors.Join(err, now.store(t, id))
}

// markChanged marks the days as stale whose groups a changed version belongs to.
func markChanged(t *db.Tx, old, now *workloadRow) error {
	if now.from != old.from || now.groupKeys() == old.groupKeys() || old.last == 0 {
		return nil
	}
	for day := schema.DayOf(old.first); day <= old.last && day < t.Day; day += schema.DayMinutes {
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
	if n.Kind != workload.Job || w.username == "" || n.User == "" || schema.Clean(n.User) == w.username || isNumeric(w.username) {
		return n
	}
	left := *n
	left.Name, left.Job, left.User, left.Project, left.Labels = "", "", "", "", nil
	return &left
}

// isNumeric reports whether a user is a number: its name could not be looked up.
func isNumeric(user string) bool { return strings.Trim(user, "0123456789") == "" }

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
	if w.id == "" {
		w.known = through
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
	if w.username == "" || isNumeric(w.username) || !isNumeric(schema.Clean(n.User)) {
		text(&w.username, n.User)
	}
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

// groupKeys returns the values of [workloadRow.counted].
func (w *workloadRow) groupKeys() (keys [5]string) {
	for i, v := range w.counted() {
		keys[i] = *v
	}
	return keys
}

// A labelChange is the labels that a version has, and those that it is to have; want is nil if they stay as they are.
type labelChange struct{ have, want map[string]string }

// newLabels returns the change of a version's labels. A newer set replaces the old one; an older one fills in missing
// labels; an empty one changes nothing.
func (b *booking) newLabels(id int64, labels map[string]string, newer bool) (c labelChange, err error) {
	if len(labels) == 0 {
		return c, nil
	}
	if c.have, err = labelsOf(b.Tx, id); err != nil {
		return c, err
	}
	c.want = cleanLabels(labels)
	if !newer {
		maps.Copy(c.want, c.have)
	}
	return c, nil
}

func (c *labelChange) isChange() bool { return c.want != nil && !maps.Equal(c.have, c.want) }

// newText returns the bytes of the labels that the version has not.
func (c *labelChange) newText() (n int) {
	for k, v := range c.want {
		if old, ok := c.have[k]; !ok || old != v {
			n += len(k) + len(v)
		}
	}
	return n
}

// store writes the labels of a version.
func (c *labelChange) store(t *db.Tx, id int64) error {
	if !c.isChange() {
		return nil
	}
	if err := replaceLabels(t, id, c.have, c.want); err != nil {
		return err
	}
	_, err := t.Exec("UPDATE workload SET rev = $2 WHERE id = $1", id, t.Rev)
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

// ReplaceName replaces the name of a version of a workload.
func ReplaceName(t *db.Tx, id int64, w *replica.Workload) error {
	var old workloadRow
	if err := t.QueryRow("SELECT "+nameColumns+" FROM workload WHERE id = $1", id).Scan(old.targets()...); err != nil {
		return err
	}
	now := workloadRow{from: old.from}.merge(w.Name, 0)
	now.namespace, now.pod, now.container, now.at = schema.Clean(w.Namespace), schema.Clean(w.Pod), schema.Clean(w.Container), schema.Nanos(w.Named)
	now.run = schema.RunRowOf(w.Run)
	if err := now.store(t, id); err != nil {
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
	return markChanged(t, &old, &now)
}
