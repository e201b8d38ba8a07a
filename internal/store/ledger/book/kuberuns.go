package book

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// BookRuns stores Jobs of a Kubernetes cluster, and what is known of them in the workloads that are parts of them, also
// of Jobs that were stored earlier and are not in the list, if that is not done yet. The first start of a Job stays, and so does its
// end, which API servers do not take back; its exit code stays until a container that failed later is known. Errors are
// those of [Booker.BookPods].
func (k *Booker) BookRuns(ctx context.Context, l pod.Lease, runs []pod.Run) error {
	const what = "booking Jobs of Kubernetes"
	if err := eachLeased(ctx, k, l, runs, what, func(t *db.Tx, r *pod.Run) error { return storeRun(t, l.Cluster, r) }); err != nil {
		return err
	}
	for done := false; !done; {
		err := k.db.Write(ctx, func(t *db.Tx) (err error) {
			if err := checkLease(t, l); err != nil {
				return err
			}
			done, err = placeRuns(t, l.Cluster)
			return err
		})
		if err != nil {
			return db.Wrap(err, what)
		}
	}
	return nil
}

// RunsGone records that the API server does not have Jobs any more. Errors are those of [Booker.BookPods].
func (k *Booker) RunsGone(ctx context.Context, l pod.Lease, runs []pod.Run, at time.Time) error {
	return eachLeased(ctx, k, l, runs, "deleted Jobs of Kubernetes", func(t *db.Tx, r *pod.Run) error {
		_, err := t.Exec("UPDATE kube_job SET gone_ns = $4 WHERE cluster = $1 AND namespace = $2 AND uid = $3 AND gone_ns = 0",
			l.Cluster, schema.Clean(r.Namespace), schema.Clean(r.UID), at.UnixNano())
		return err
	})
}

// LiveRuns returns the UIDs and namespaces of the cluster's Jobs that the API server had last, as far as is known.
func (k *Booker) LiveRuns(ctx context.Context, cluster string) (runs []pod.Run, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var r pod.Run
			err := scan(&r.UID, &r.Namespace)
			runs = append(runs, r)
			return err
		}, "SELECT uid, namespace FROM kube_job WHERE cluster = $1 AND gone_ns = 0 ORDER BY namespace, uid", cluster)
	})
	return runs, db.Wrap(err, "reading Jobs of Kubernetes")
}

// storeRun stores a Job.
func storeRun(t *db.Tx, cluster string, r *pod.Run) error {
	now, failed := schema.RunRowOf(workload.Run{Started: r.Started, Ended: r.Ended, Exit: r.Exit}), schema.Nanos(r.Failed)
	namespace, uid := schema.Clean(r.Namespace), schema.Clean(r.UID)
	var id, was, placed, gone int64
	var old schema.RunRow
	err := t.QueryRow("SELECT id, started_ns, ended_ns, exit_code, failed_ns, placed, gone_ns FROM kube_job WHERE cluster = $1 AND namespace = $2 AND uid = $3", cluster, namespace, uid).
		Scan(&id, &old.Started, &old.Ended, &old.Exit, &was, &placed, &gone)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = t.Exec("INSERT INTO kube_job (cluster, namespace, uid, started_ns, ended_ns, exit_code, failed_ns, placed, gone_ns) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0)",
			cluster, namespace, uid, now.Started, now.Ended, now.Exit, failed)
		return err
	case err != nil:
		return err
	}
	if now.Started == 0 || old.Started != 0 && old.Started < now.Started {
		now.Started = old.Started // it is suspended, or was
	}
	if now.Ended == 0 && old.Ended != 0 {
		now.Ended, now.Exit, failed = old.Ended, old.Exit, was // the API server is behind
	} else if now.Ended == old.Ended && now.Exit > 0 && old.Exit > 0 && failed < was {
		now.Exit, failed = old.Exit, was // the pod that failed last was deleted
	}
	if now == old && failed == was && gone == 0 {
		return nil
	}
	if now != old {
		placed = 0
	}
	_, err = t.Exec("UPDATE kube_job SET started_ns = $2, ended_ns = $3, exit_code = $4, failed_ns = $5, placed = $6, gone_ns = 0 WHERE id = $1",
		id, now.Started, now.Ended, now.Exit, failed, placed)
	return err
}

// partsPerWrite limits the workloads that a transaction writes to, so that batches need not wait for long.
const partsPerWrite = 1000

// placeRuns writes what is known of Jobs to workloads that are parts of them, and do not say it yet: to some of these.
// done says that none is left. Parts that come later take it from the Job: see [place.set].
func placeRuns(t *db.Tx, cluster string) (done bool, err error) {
	left := partsPerWrite
	for left > 0 {
		var id, placed int64
		var namespace, uid string
		var r schema.RunRow
		err := t.QueryRow("SELECT id, namespace, uid, started_ns, ended_ns, exit_code, placed FROM kube_job WHERE cluster = $1 AND placed <> 9223372036854775807 ORDER BY id LIMIT 1", cluster).
			Scan(&id, &namespace, &uid, &r.Started, &r.Ended, &r.Exit, &placed)
		if errors.Is(err, sql.ErrNoRows) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		parts, err := t.Ints(fmt.Sprintf(`SELECT w.id FROM workload w JOIN node n ON n.id = w.node WHERE w.run = $1 AND w.run <> '' AND w.id > $2 AND n.cluster = $3 ORDER BY w.id LIMIT %d`, left),
			string(workload.NewRunID(cluster, namespace, uid)), placed, cluster)
		if err != nil {
			return false, err
		}
		for _, part := range parts {
			if _, err := t.Exec("UPDATE workload SET run_started_ns = $2, run_ended_ns = $3, run_exit = $4, rev = $5 WHERE id = $1", part, r.Started, r.Ended, r.Exit, t.Rev); err != nil {
				return false, err
			}
			placed = part
		}
		if len(parts) < left {
			placed = math.MaxInt64
		}
		if _, err := t.Exec("UPDATE kube_job SET placed = $2 WHERE id = $1", id, placed); err != nil {
			return false, err
		}
		left -= max(len(parts), 1)
	}
	return false, nil
}

// runOf returns what is known of the Job that a pod says it is of.
func runOf(t *db.Tx, cluster, namespace, uid, name string) (schema.RunRow, error) {
	r := schema.RunRow{ID: string(workload.NewRunID(cluster, namespace, uid)), Name: name, Exit: -1}
	err := t.QueryRow("SELECT started_ns, ended_ns, exit_code FROM kube_job WHERE cluster = $1 AND namespace = $2 AND uid = $3", cluster, namespace, uid).
		Scan(&r.Started, &r.Ended, &r.Exit)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return r, err
}
