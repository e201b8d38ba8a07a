package book

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/slurm"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// slurmPerWrite limits the jobs of a transaction, so that batches need not wait.
const slurmPerWrite = 100

// BookSlurm stores jobs of a Slurm cluster, and names the workloads of their runs and steps: those that are booked already, and
// those that will be. Newer attributes of a job replace those that are stored; the same again changes nothing. at is when the
// jobs were read. It returns the numbers that earlier jobs had too.
func (k *Booker) BookSlurm(ctx context.Context, cluster string, jobs []slurm.Job, at time.Time) (reused []int64, err error) {
	for chunk := range slices.Chunk(jobs, slurmPerWrite) {
		var some []int64
		err := k.db.Write(ctx, func(t *db.Tx) error {
			some = nil
			for i := range chunk {
				again, err := bookSlurmJob(t, cluster, &chunk[i], schema.Nanos(at))
				if err != nil {
					return err
				}
				if again {
					some = append(some, chunk[i].ID)
				}
			}
			return nil
		})
		if err != nil {
			return reused, db.Wrap(err, "booking jobs of Slurm")
		}
		reused = append(reused, some...)
	}
	return reused, nil
}

// SlurmGone records that the controller does not have jobs any more, which it had before.
func (k *Booker) SlurmGone(ctx context.Context, cluster string, jobs []int64, at time.Time) error {
	for chunk := range slices.Chunk(jobs, slurmPerWrite) {
		err := k.db.Write(ctx, func(t *db.Tx) error {
			_, err := t.Exec("UPDATE slurm_job SET gone_ns = $2 WHERE cluster = $1 AND gone_ns = 0 AND job IN ("+schema.JoinInts(chunk)+")", cluster, schema.Nanos(at))
			return err
		})
		if err != nil {
			return db.Wrap(err, "ending jobs of Slurm")
		}
	}
	return nil
}

// LiveSlurm returns the numbers of the cluster's jobs that are not known to have ended.
func (k *Booker) LiveSlurm(ctx context.Context, cluster string) (jobs []int64, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		jobs, err = db.Ints(v.Ctx, v.SQL, "SELECT DISTINCT job FROM slurm_job WHERE cluster = $1 AND gone_ns = 0 ORDER BY job", cluster)
		return err
	})
	return jobs, db.Wrap(err, "reading jobs of Slurm")
}

// SetSlurmRead records that the jobs of a cluster were read.
func (k *Booker) SetSlurmRead(ctx context.Context, cluster string, at time.Time) error {
	err := k.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec(`INSERT INTO slurm_read (cluster, read_ns) VALUES ($1, $2) ON CONFLICT (cluster) DO UPDATE SET read_ns = excluded.read_ns
			WHERE slurm_read.read_ns < excluded.read_ns`, cluster, schema.Nanos(at))
		return err
	})
	return db.Wrap(err, "time of reading jobs of Slurm")
}

// SlurmRead returns when the jobs of a cluster were read last, zero if never.
func (k *Booker) SlurmRead(ctx context.Context, cluster string) (at time.Time, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		ns, err := db.Ints(v.Ctx, v.SQL, "SELECT read_ns FROM slurm_read WHERE cluster = $1", cluster)
		if len(ns) > 0 {
			at = schema.FromNanos(ns[0])
		}
		return err
	})
	return at, db.Wrap(err, "time of reading jobs of Slurm")
}

// A slurmRow is a job as it is stored.
type slurmRow struct {
	id, submitted, restarts, from int64
	name, username, account       string
	hosts, labels                 string
	started, ended, gone          int64
	exit                          sql.NullInt64
}

const slurmColumns = "id, submitted_ns, restarts, from_ns, name, username, account, hosts, labels, started_ns, ended_ns, exit_code, gone_ns"

func (r *slurmRow) targets() []any {
	return []any{&r.id, &r.submitted, &r.restarts, &r.from, &r.name, &r.username, &r.account, &r.hosts, &r.labels, &r.started, &r.ended, &r.exit, &r.gone}
}

// slurmRows returns the jobs of a cluster that have a number, in the order of their starts.
func slurmRows(t *db.Tx, cluster string, job int64) (rows []slurmRow, err error) {
	err = t.Each(func(scan func(...any) error) error {
		var r slurmRow
		err := scan(r.targets()...)
		rows = append(rows, r)
		return err
	}, "SELECT "+slurmColumns+" FROM slurm_job WHERE cluster = $1 AND job = $2 ORDER BY from_ns, submitted_ns", cluster, job)
	return rows, err
}

// unseenRestarts is how long before its start a job may have begun that was requeued before it was seen.
const unseenRestarts = 7 * 24 * time.Hour

// bookSlurmJob stores a job, and reports whether an earlier one had its number.
func bookSlurmJob(t *db.Tx, cluster string, j *slurm.Job, at int64) (again bool, err error) {
	labels, err := json.Marshal(cleanLabels(j.Labels)) // keys are sorted
	if err != nil {
		return again, err
	}
	now := slurmRow{submitted: schema.Nanos(j.Submitted), restarts: int64(j.Restarts), from: schema.Nanos(j.Started), name: schema.Clean(j.Name), username: schema.Clean(j.User),
		account: schema.Clean(j.Account), labels: string(labels), started: schema.Nanos(j.Started), ended: schema.Nanos(j.Ended)}
	if now.ended != 0 {
		now.gone = max(now.ended, 1)
	}
	if j.Exit != nil {
		now.exit = sql.NullInt64{Int64: int64(*j.Exit), Valid: true}
	}
	have, err := slurmRows(t, cluster, j.ID)
	if err != nil {
		return again, err
	}
	old := now.sameJob(have)
	switch {
	case old == nil:
		now.hosts = joinHosts("", j.Hosts)
		if now.restarts > 0 {
			now.from -= int64(unseenRestarts)
		}
		err = t.QueryRow(`INSERT INTO slurm_job (cluster, job, submitted_ns, restarts, from_ns, name, username, account, hosts, labels, started_ns, ended_ns, gone_ns)
			VALUES ($1, $2, $3, 0, 0, '', '', '', '', '', 0, 0, 0) RETURNING id`, cluster, j.ID, now.submitted).Scan(&now.id)
		if err != nil {
			return again, err
		}
		// No end was seen of an earlier job, if its number is in use again.
		if again = len(have) > 0; again {
			_, err = t.Exec("UPDATE slurm_job SET gone_ns = $4 WHERE cluster = $1 AND job = $2 AND submitted_ns < $3 AND gone_ns = 0", cluster, j.ID, now.submitted, max(now.started, 1))
			if err != nil {
				return again, err
			}
		}
	case now.isOlder(old):
		return again, nil
	default:
		now.id, now.restarts = old.id, max(now.restarts, old.restarts)
		now.from, now.started = min(now.from, old.from), min(now.started, old.started)
		now.hosts = joinHosts(old.hosts, j.Hosts)
		if old.exit.Valid && old.ended == now.ended {
			now.exit = old.exit // accounting has 9 in the place of 137
		}
		if now == *old {
			return again, nil
		}
	}
	_, err = t.Exec(`UPDATE slurm_job SET submitted_ns = $2, restarts = $3, from_ns = $4, name = $5, username = $6, account = $7, hosts = $8, labels = $9,
		started_ns = $10, ended_ns = $11, exit_code = $12, gone_ns = $13 WHERE id = $1`, now.id, now.submitted, now.restarts, now.from, now.name, now.username, now.account,
		now.hosts, now.labels, now.started, now.ended, now.exit, now.gone)
	if err != nil {
		return again, err
	}
	ids, err := t.Ints(`SELECT w.id FROM workload w JOIN node n ON n.id = w.node WHERE w.key = $2 AND w.kind IN ('slurm-job', 'slurm-step') AND n.cluster = $1
		UNION SELECT w.id FROM workload o JOIN node n ON n.id = o.node JOIN workload w ON w.node = o.node AND w.parent = o.wid AND w.kind = 'slurm-step'
			WHERE o.key = $2 AND o.kind IN ('slurm-job', 'slurm-step') AND n.cluster = $1`, cluster, slurm.Key(j.ID))
	if err != nil {
		return again, err
	}
	for _, id := range ids {
		if err := nameSlurm(t, id, at); err != nil {
			return again, err
		}
	}
	return again, nil
}

// sameJob returns the row, of those with a number, that is the same job, or nil. A requeued job counts its restarts, is
// submitted again a moment later, and stays its user's; a job that the controller gives the number of another one begins
// without restarts.
func (r *slurmRow) sameJob(have []slurmRow) *slurmRow {
	for i := range have {
		if have[i].submitted == r.submitted {
			return &have[i]
		}
	}
	for i := range slices.Backward(have) {
		earlier, later := &have[i], r
		if r.submitted < earlier.submitted {
			earlier, later = later, earlier
		}
		if earlier.username == later.username && later.restarts > 0 && later.restarts >= earlier.restarts {
			return &have[i]
		}
	}
	return nil
}

// isOlder reports whether what r says of a job was so before what o says.
func (r *slurmRow) isOlder(o *slurmRow) bool {
	c := cmp.Or(cmp.Compare(r.submitted, o.submitted), cmp.Compare(r.restarts, o.restarts))
	return c < 0 || c == 0 && r.ended == 0 && o.ended != 0
}

// joinHosts returns the names of machines, each between commas, of which some are in that form already.
func joinHosts(have string, more []string) string {
	all := map[string]bool{}
	for _, h := range append(strings.Split(have, ","), more...) {
		if h = slurm.Host(schema.Clean(h)); h != "" && !strings.Contains(h, ",") {
			all[h] = true
		}
	}
	return "," + strings.Join(slices.Sorted(maps.Keys(all)), ",") + ","
}

// How much earlier than its job, by the clock of the node, a workload may be known, and how much later than the end: its
// group is removed after the epilog, and an agent that starts sends what is left.
const slurmEarly, slurmLate = int64(2 * time.Minute), int64(10 * time.Minute)

// slurmAt returns the job to which use at an instant belongs, of those that had the number on one machine, or nil.
func slurmAt(jobs []slurmRow, at int64) *slurmRow {
	for i := range slices.Backward(jobs) {
		if j := &jobs[i]; j.from-slurmEarly <= at {
			if j.gone != 0 && j.gone+slurmLate < at {
				return nil
			}
			return j
		}
	}
	return nil
}

// A slurmPlace is the job to which a version of a workload belongs, or nil.
type slurmPlace struct {
	job  *slurmRow
	step string // "" of the job itself
	// again says that the job is another one than that of the version: its number is in use again.
	again bool
}

// findSlurm finds the job of a version that was named last at an instant. Nodes of standalone jobs have none: any user can send
// such rows, with any key.
func findSlurm(t *db.Tx, node int64, w *workloadRow, named int64) (p slurmPlace, err error) {
	if w.kind != workload.SlurmJob.String() && w.kind != workload.SlurmStep.String() {
		return p, nil
	}
	number, step, ok := slurm.ParseKey(w.key)
	if !ok || (step == "") != (w.kind == workload.SlurmJob.String()) {
		return p, nil
	}
	var cluster, name, machine string
	if err := t.QueryRow("SELECT cluster, name, machine_id FROM node WHERE id = $1", node).Scan(&cluster, &name, &machine); err != nil {
		return p, err
	}
	if registry.IsJobsMachine(machine) {
		return p, nil
	}
	jobs, err := slurmRows(t, cluster, number)
	if err != nil {
		return p, err
	}
	host := "," + slurm.Host(name) + ","
	jobs = slices.DeleteFunc(jobs, func(j slurmRow) bool { return !strings.Contains(j.hosts, host) })
	known := w.known
	if known == 0 {
		known = named // it was named before ledgers kept this
	}
	if w.ended != 0 {
		known = min(known, w.ended) // it may have been sent long after
	}
	p = slurmPlace{job: slurmAt(jobs, known), step: step}
	if latest := slurmAt(jobs, named); named > known && latest != nil && latest != p.job {
		p.job, p.again = latest, true
	}
	return p, nil
}

// set sets what the job says in the row of a version that was named last at an instant, and its labels.
func (p *slurmPlace) set(t *db.Tx, id int64, now *workloadRow, labels *labelChange, named int64) (err error) {
	j := p.job
	if p.again {
		now.known = named
	}
	now.username, now.project = j.username, j.account
	if err := json.Unmarshal([]byte(j.labels), &labels.want); err != nil {
		return err
	}
	if j.name != "" {
		now.name, now.job = j.name, j.name
	}
	if p.step == "" {
		// The agent knows when the groups of one machine came and went: what is left of a job that is gone without an end.
		if now.started = j.started; j.ended != 0 || j.gone == 0 {
			now.ended = j.ended
		}
		if now.exit = nil; j.exit.Valid {
			now.exit = &j.exit.Int64
		}
	} else {
		now.name += "/" + p.step
		maps.DeleteFunc(labels.want, func(k, _ string) bool { return k == slurm.LabelState || k == slurm.LabelNodes })
	}
	labels.have, err = labelsOf(t, id)
	return err
}

// nameSlurm names a version of a workload by its job, if that is known.
func nameSlurm(t *db.Tx, id, at int64) error {
	var old workloadRow
	var node, short, through int64
	err := t.QueryRow("SELECT w.node, w.short, n.through_ns FROM workload w JOIN node n ON n.id = w.node WHERE w.id = $1", id).Scan(&node, &short, &through)
	if err != nil {
		return err
	}
	if err := t.QueryRow("SELECT "+nameColumns+" FROM workload WHERE id = $1", id).Scan(old.targets()...); err != nil {
		return err
	}
	w, _, err := t.KnownWorkload(node, workload.ShortID(short))
	if err != nil {
		return err
	}
	named := old.known
	if id == w.Latest() {
		named = old.at
	}
	p, err := findSlurm(t, node, &old, named)
	if err != nil || p.job == nil {
		return err
	}
	now, labels := old, labelChange{}
	if err := p.set(t, id, &now, &labels, named); err != nil {
		return err
	}
	if end := max(at, through); p.again && !old.isLater(end) {
		if id, _, err = addVersion(t, node, workload.ShortID(short), w, &now, &labels, end); err != nil {
			return err
		}
	}
	if now.isEqual(&old) && !labels.isChange() {
		return nil
	}
	return errors.Join(now.store(t, id), labels.store(t, id), markChanged(t, &old, &now))
}

// nameSlurmSteps names the steps of the workload of a job.
func nameSlurmSteps(t *db.Tx, node int64, parent string, at int64) error {
	ids, err := t.Ints("SELECT id FROM workload WHERE node = $1 AND parent = $2 AND kind = 'slurm-step'", node, parent)
	for _, id := range ids {
		err = errors.Join(err, nameSlurm(t, id, at))
	}
	return err
}
