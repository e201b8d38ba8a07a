package book

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A place is where a workload belongs in a Kubernetes cluster.
type place struct {
	namespace, pod, container, job string
	labels                         map[string]string
}

// podsPerWrite limits the pods of a transaction, so that batches need not wait.
const podsPerWrite = 100

// BookPods stores pods of a cluster, and names the workloads that are parts of them: those that are
// booked already, and those that will be. A pod that was stored before is replaced; its containers stay.
func (k *Booker) BookPods(ctx context.Context, cluster string, pods []pod.Pod) error {
	for chunk := range slices.Chunk(pods, podsPerWrite) {
		err := k.db.Write(ctx, func(t *db.Tx) error {
			for i := range chunk {
				if err := bookPod(t, cluster, &chunk[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return db.Wrap(err, "booking pods")
		}
	}
	return nil
}

// EndPods records that the API server does not have pods any more.
func (k *Booker) EndPods(ctx context.Context, cluster string, uids []string, at time.Time) error {
	for chunk := range slices.Chunk(uids, podsPerWrite) {
		err := k.db.Write(ctx, func(t *db.Tx) error {
			for _, uid := range chunk {
				if _, err := t.Exec("UPDATE pod SET ended_ns = $3 WHERE cluster = $1 AND uid = $2 AND ended_ns = 0", cluster, schema.Clean(uid), at.UnixNano()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return db.Wrap(err, "ending pods")
		}
	}
	return nil
}

// LivePods returns the UIDs of the cluster's pods that have not ended.
func (k *Booker) LivePods(ctx context.Context, cluster string) (uids []string, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var uid string
			err := scan(&uid)
			uids = append(uids, uid)
			return err
		}, "SELECT uid FROM pod WHERE cluster = $1 AND ended_ns = 0", cluster)
	})
	return uids, db.Wrap(err, "reading pods")
}

func bookPod(t *db.Tx, cluster string, p *pod.Pod) error {
	labels, err := json.Marshal(cleanLabels(p.Labels)) // keys are sorted
	if err != nil {
		return err
	}
	row := podRow{schema.Clean(p.Namespace), schema.Clean(p.Name), schema.Clean(p.Job), schema.Clean(p.Node), string(labels), 0}
	containers := cleanLabels(p.Containers)
	id, have, err := readPod(t, cluster, schema.Clean(p.UID))
	if err != nil {
		return err
	}
	// The workloads of a pod that did not change have its names.
	if id != 0 && row == have.podRow && isSubset(containers, have.containers) {
		return nil
	}
	err = t.QueryRow(`INSERT INTO pod (cluster, uid, namespace, name, job, node, labels, created_ns) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (cluster, uid) DO UPDATE SET namespace = excluded.namespace, name = excluded.name, job = excluded.job, node = excluded.node,
		labels = excluded.labels, ended_ns = 0 RETURNING id`,
		cluster, schema.Clean(p.UID), row.namespace, row.name, row.job, row.node, row.labels, schema.Nanos(p.Created)).
		Scan(&id)
	if err != nil {
		return err
	}
	for c, name := range containers {
		_, err := t.Exec(`INSERT INTO pod_container (cluster, container, pod, name) VALUES ($1, $2, $3, $4)
			ON CONFLICT (cluster, container) DO UPDATE SET pod = excluded.pod, name = excluded.name`, cluster, c, id, name)
		if err != nil {
			return err
		}
	}
	return placePod(t, cluster, id)
}

type podRow struct {
	namespace, name, job, node, labels string
	ended                              int64
}

type storedPod struct {
	podRow
	containers map[string]string
}

// readPod reads a pod; id is 0 if it is not stored.
func readPod(t *db.Tx, cluster, uid string) (id int64, p storedPod, err error) {
	err = t.QueryRow("SELECT id, namespace, name, job, node, labels, ended_ns FROM pod WHERE cluster = $1 AND uid = $2", cluster, uid).
		Scan(&id, &p.namespace, &p.name, &p.job, &p.node, &p.labels, &p.ended)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, p, nil
	} else if err != nil {
		return 0, p, err
	}
	p.containers = map[string]string{}
	return id, p, t.Each(func(scan func(...any) error) error {
		var container, name string
		err := scan(&container, &name)
		p.containers[container] = name
		return err
	}, "SELECT container, name FROM pod_container WHERE pod = $1", id)
}

func isSubset(part, of map[string]string) bool {
	for k, v := range part {
		if have, ok := of[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// placePod names the booked workloads of a pod: its own, its containers by their ids, and other containers
// below it.
func placePod(t *db.Tx, cluster string, id int64) error {
	ids, err := t.Ints(`SELECT w.id FROM pod p JOIN workload w ON w.key = p.uid AND w.kind IN ('pod', 'container') AND w.kind = 'pod' JOIN node n ON n.id = w.node
			WHERE p.id = $1 AND n.cluster = $2
		UNION SELECT w.id FROM pod_container c JOIN workload w ON w.key = c.container AND w.kind IN ('pod', 'container') AND w.kind = 'container' JOIN node n ON n.id = w.node
			WHERE c.pod = $1 AND n.cluster = $2
		UNION SELECT w.id FROM pod p JOIN workload o ON o.key = p.uid AND o.kind IN ('pod', 'container') AND o.kind = 'pod' JOIN node n ON n.id = o.node
			JOIN workload w ON w.parent = o.wid AND w.kind = 'container' AND w.node = o.node
			WHERE p.id = $1 AND n.cluster = $2`, id, cluster)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := placeWorkload(t, id); err != nil {
			return err
		}
	}
	return nil
}

// placeWorkload names a workload by its pod, if it is part of a known one.
func placeWorkload(t *db.Tx, id int64) error {
	var cluster, machine, kind, key, parent string
	var node int64
	var old workloadRow
	var first, last int64
	err := t.QueryRow(`SELECT n.cluster, n.machine_id, w.node, w.kind, w.key, w.parent, w.name, w.namespace, w.pod, w.container, w.job, w.username, w.project, w.first_minute, w.last_minute
		FROM workload w JOIN node n ON n.id = w.node WHERE w.id = $1`, id).
		Scan(&cluster, &machine, &node, &kind, &key, &parent, &old.name, &old.namespace, &old.pod, &old.container, &old.job, &old.username, &old.project, &first, &last)
	if err != nil {
		return err
	}
	if registry.IsJobsMachine(machine) {
		return nil // any user can send jobs, with any key
	}
	p, ok, err := findPlace(t, cluster, node, kind, key, parent)
	if !ok || err != nil {
		return err
	}
	old.kind = kind
	now := old
	now.namespace, now.pod, now.job = p.namespace, p.pod, p.job
	switch {
	case kind == workload.Pod.String():
		now.name = p.pod
	case p.container != "":
		now.container, now.name = p.container, p.pod+"/"+p.container
	}
	have, err := labelsOf(t, id)
	if err != nil {
		return err
	}
	if now == old && maps.Equal(have, p.labels) {
		return nil
	}
	if _, err := t.Exec("UPDATE workload SET namespace = $2, pod = $3, container = $4, job = $5, name = $6, rev = $7 WHERE id = $1",
		id, now.namespace, now.pod, now.container, now.job, now.name, t.Rev); err != nil {
		return err
	}
	if err := replaceLabels(t, id, have, p.labels); err != nil {
		return err
	}
	return markChanged(t, &old, &now, first, last)
}

// findPlace returns the place of a workload of a node.
func findPlace(t *db.Tx, cluster string, node int64, kind, key, parent string) (p place, ok bool, err error) {
	var labels string
	scan := func(row db.Row) {
		if err = row.Scan(&p.namespace, &p.pod, &p.job, &labels, &p.container); errors.Is(err, sql.ErrNoRows) {
			err = nil
		} else if err == nil {
			ok = true
		}
	}
	const columns = "SELECT p.namespace, p.name, p.job, p.labels, "
	switch kind {
	case workload.Pod.String():
		scan(t.QueryRow(columns+"'' FROM pod p WHERE p.cluster = $1 AND p.uid = $2", cluster, key))
	case workload.Container.String():
		scan(t.QueryRow(columns+"c.name FROM pod_container c JOIN pod p ON p.id = c.pod WHERE c.cluster = $1 AND c.container = $2", cluster, key))
		short, isID := workload.ShortIDOf(workload.ID(parent))
		if ok || err != nil || !isID {
			break
		}
		scan(t.QueryRow(columns+`'' FROM workload o JOIN pod p ON p.uid = o.key WHERE o.node = $1 AND o.short = $2 AND o.kind = 'pod' AND p.cluster = $3`, node, int64(short), cluster))
	}
	if !ok || err != nil {
		return p, false, err
	}
	return p, true, json.Unmarshal([]byte(labels), &p.labels)
}
