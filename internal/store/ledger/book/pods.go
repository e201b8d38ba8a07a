package book

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
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
	isCarrier                      bool // of what is reserved
	run                            schema.RunRow
}

// podsPerWrite limits the pods of a transaction, so that batches need not wait for long. Under overload the transactions of
// batches take seconds, with one of pods between two of them: fewer pods would fall behind.
const podsPerWrite = 500

// BookPods stores pods of a cluster, and names the workloads that are parts of them: those that are
// booked already, and those that will be. A pod that was stored before is replaced; its containers stay.
// A pod with the UID of another one is ignored, and a container stays with a live pod. at is when the pods were seen: a
// change of job or labels counts from the next quarter of an hour on. A lease that is not the latest of its cluster is
// fault.ErrConflict.
func (k *Booker) BookPods(ctx context.Context, l pod.Lease, pods []pod.Pod, at time.Time) error {
	return eachLeased(ctx, k, l, pods, "booking pods", func(t *db.Tx, p *pod.Pod) error { return bookPod(t, l, p, schema.Nanos(at)) })
}

// EndPods records that the API server does not have pods any more. It takes their UIDs, namespaces and names. Errors are
// those of BookPods.
func (k *Booker) EndPods(ctx context.Context, l pod.Lease, pods []pod.Pod, at time.Time) error {
	return eachLeased(ctx, k, l, pods, "ending pods", func(t *db.Tx, p *pod.Pod) error {
		ids, err := t.Ints("UPDATE pod SET ended_ns = $5 WHERE cluster = $1 AND uid = $2 AND namespace = $3 AND name = $4 AND volume = 0 AND ended_ns = 0 RETURNING id",
			l.Cluster, schema.Clean(p.UID), schema.Clean(p.Namespace), schema.Clean(p.Name), at.UnixNano())
		for _, id := range ids {
			err = errors.Join(err, releasePod(t, id, p, schema.Nanos(at)))
		}
		return err
	})
}

// eachLeased calls f for pods, Jobs or volumes, for some of them in each transaction, while the lease is the latest of its cluster.
func eachLeased[T any](ctx context.Context, k *Booker, l pod.Lease, list []T, what string, f func(*db.Tx, *T) error) error {
	for chunk := range slices.Chunk(list, podsPerWrite) {
		err := k.db.Write(ctx, func(t *db.Tx) error {
			if err := checkLease(t, l); err != nil {
				return err
			}
			for i := range chunk {
				if err := f(t, &chunk[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return db.Wrap(err, "%s", what)
		}
	}
	return nil
}

// LivePods returns the UIDs, namespaces and names of the cluster's pods that have not ended.
func (k *Booker) LivePods(ctx context.Context, cluster string) (pods []pod.Pod, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var p pod.Pod
			err := scan(&p.UID, &p.Namespace, &p.Name)
			pods = append(pods, p)
			return err
		}, "SELECT uid, namespace, name FROM pod WHERE cluster = $1 AND volume = 0 AND ended_ns = 0 ORDER BY uid", cluster)
	})
	return pods, db.Wrap(err, "reading pods")
}

func bookPod(t *db.Tx, l pod.Lease, p *pod.Pod, at int64) error {
	cluster := l.Cluster
	labels, err := json.Marshal(cleanLabels(p.Labels)) // keys are sorted
	if err != nil {
		return err
	}
	row := podRow{schema.Clean(p.Namespace), schema.Clean(p.Name), schema.Clean(p.Job), schema.Clean(p.Node), string(labels), schema.Clean(p.RunUID), schema.Clean(p.RunName), joinClaims(p.Claims), 0, 0, 0}
	id, old, had, err := readPod(t, cluster, schema.Clean(p.UID))
	if err != nil {
		return err
	}
	if isSame := row.namespace == old.namespace && row.name == old.name && row.volume == old.volume; id != 0 && !isSame {
		return nil // a user that creates pods can claim any UID, as that of a static pod
	} else if isSame && p.OwnerGone {
		row.job = old.job
	}
	if row.runUID == "" { // its Job was deleted before it, and left it
		row.runUID, row.runName = old.runUID, old.runName
	}
	// The workloads of a pod that did not change have its names.
	changed := id == 0 || row != old
	if changed {
		if id, err = row.store(t, cluster, schema.Clean(p.UID), schema.Nanos(p.Created)); err != nil {
			return err
		}
	}
	if err := forgetContainers(t, id, p.Containers, had); err != nil {
		return err
	}
	for c, name := range cleanLabels(p.Containers) {
		if had[c] == name && name != "" {
			continue
		}
		n, err := t.Exec(`INSERT INTO pod_container (cluster, container, pod, name) VALUES ($1, $2, $3, $4)
			ON CONFLICT (cluster, container) DO UPDATE SET pod = excluded.pod, name = excluded.name
			WHERE pod_container.pod = excluded.pod OR NOT EXISTS (SELECT 1 FROM pod p WHERE p.id = pod_container.pod AND p.ended_ns = 0)`, cluster, c, id, name)
		if err != nil {
			return err
		}
		if n > 0 && !changed {
			if err := placeAll(t, at, placeContainer, cluster, c); err != nil {
				return err
			}
		}
	}
	if changed {
		if err := placeAll(t, at, placePod, cluster, id); err != nil {
			return err
		}
	}
	return reservePod(t, l, id, p, "since_ns", at)
}

// containersPerPod is how many containers of a pod are remembered. One that crashes again and again has another container
// each time.
const containersPerPod = 200

// forgetContainers forgets the containers of a pod that its status does not name any more, if there are too many. Workloads
// have their names already.
func forgetContainers(t *db.Tx, pod int64, now, had map[string]string) error {
	if len(had) <= containersPerPod {
		return nil
	}
	for c := range had {
		if _, is := now[c]; is {
			continue
		}
		if _, err := t.Exec("DELETE FROM pod_container WHERE pod = $1 AND container = $2", pod, c); err != nil {
			return err
		}
	}
	return nil
}

type podRow struct {
	namespace, name, job, node, labels, runUID, runName, claims string
	ended, volume, released                                     int64
}

// store stores a pod or a volume, which has not ended, and returns its id.
func (p *podRow) store(t *db.Tx, cluster, uid string, created int64) (id int64, err error) {
	return id, t.QueryRow(`INSERT INTO pod (cluster, uid, namespace, name, job, node, labels, run_uid, run_name, created_ns, volume, claims, released_ns) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (cluster, uid) DO UPDATE SET namespace = excluded.namespace, name = excluded.name, job = excluded.job, node = excluded.node,
		labels = excluded.labels, run_uid = excluded.run_uid, run_name = excluded.run_name, claims = excluded.claims, released_ns = excluded.released_ns, ended_ns = 0 RETURNING id`,
		cluster, uid, p.namespace, p.name, p.job, p.node, p.labels, p.runUID, p.runName, created, p.volume, p.claims, p.released).Scan(&id)
}

// readPod reads a pod and its containers, or a volume; id is 0 if it is not stored.
func readPod(t *db.Tx, cluster, uid string) (id int64, p podRow, containers map[string]string, err error) {
	err = t.QueryRow("SELECT id, namespace, name, job, node, labels, run_uid, run_name, claims, ended_ns, volume, released_ns FROM pod WHERE cluster = $1 AND uid = $2", cluster, uid).
		Scan(&id, &p.namespace, &p.name, &p.job, &p.node, &p.labels, &p.runUID, &p.runName, &p.claims, &p.ended, &p.volume, &p.released)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, p, nil, nil
	} else if err != nil {
		return 0, p, nil, err
	}
	containers = map[string]string{}
	return id, p, containers, t.Each(func(scan func(...any) error) error {
		var container, name string
		err := scan(&container, &name)
		containers[container] = name
		return err
	}, "SELECT container, name FROM pod_container WHERE pod = $1", id)
}

// The versions of a workload have one key and one parent: these queries return the first one.
const (
	// placeContainer selects the workloads of cluster $1 that are container $2.
	placeContainer = `SELECT w.id FROM workload w JOIN node n ON n.id = w.node WHERE w.key = $2 AND w.kind IN ('pod', 'container') AND w.kind = 'container' AND w.version_of = 0 AND n.cluster = $1`
	// placePod selects the workloads of cluster $1 that are parts of pod $2: its own, its containers by their
	// ids, and other containers below it.
	placePod = `SELECT w.id FROM pod p JOIN workload w ON w.key = p.uid AND w.kind IN ('pod', 'container') AND w.kind = 'pod' AND w.version_of = 0 JOIN node n ON n.id = w.node
			WHERE p.id = $2 AND n.cluster = $1
		UNION ALL SELECT w.id FROM pod_container c JOIN workload w ON w.key = c.container AND w.kind IN ('pod', 'container') AND w.kind = 'container' AND w.version_of = 0 JOIN node n ON n.id = w.node
			WHERE c.pod = $2 AND n.cluster = $1
		UNION ALL SELECT w.id FROM pod p JOIN workload o ON o.key = p.uid AND o.kind IN ('pod', 'container') AND o.kind = 'pod' JOIN node n ON n.id = o.node
			JOIN workload w ON w.parent = o.wid AND w.kind = 'container' AND w.node = o.node AND w.version_of = 0
			WHERE p.id = $2 AND n.cluster = $1
		UNION ALL SELECT workload FROM reservation_carrier WHERE pod = $2 AND $1 <> ''`
)

// placeChildren names the containers of the workload of a pod.
func placeChildren(t *db.Tx, node int64, parent string, at int64) error {
	return placeAll(t, at, "SELECT id FROM workload WHERE node = $1 AND parent = $2 AND kind = 'container' AND version_of = 0", node, parent)
}

// placeAll names the workloads that a query selects.
func placeAll(t *db.Tx, at int64, query string, args ...any) error {
	ids, err := t.Ints(query, args...)
	if err != nil {
		return err
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := placeWorkload(t, id, at); err != nil {
			return err
		}
	}
	return nil
}

// placeWorkload names a workload by its pod, if it is part of a known one. at is when that was seen, ns. It takes the id
// of the first version.
func placeWorkload(t *db.Tx, first, at int64) error {
	var cluster, machine string
	var node, short, through int64
	err := t.QueryRow("SELECT n.cluster, n.machine_id, n.through_ns, w.node, w.short FROM workload w JOIN node n ON n.id = w.node WHERE w.id = $1", first).
		Scan(&cluster, &machine, &through, &node, &short)
	if err != nil {
		return err
	}
	if registry.IsJobsMachine(machine) {
		return nil // any user can send jobs, with any key
	}
	w, _, err := t.KnownWorkload(node, workload.ShortID(short))
	if err != nil {
		return err
	}
	id := w.Latest()
	var old workloadRow
	if err := t.QueryRow("SELECT "+nameColumns+" FROM workload WHERE id = $1", id).Scan(old.targets()...); err != nil {
		return err
	}
	p, ok, err := findPlace(t, cluster, node, &old)
	if !ok || err != nil {
		return err
	}
	now, labels := old, labelChange{}
	if err := p.set(t, id, &now, &labels); err != nil || now == old && !labels.isChange() {
		return err
	}
	isVolume := old.kind == workload.Volume.String()
	if uid, _, isCarrier := old.carrierOf(); isVolume || isCarrier { // its rows may be ahead
		put, err := t.Ints("SELECT put_minute * 60000000000 FROM pod WHERE cluster = $1 AND uid = $2", cluster, uid)
		if err != nil {
			return err
		}
		through = max(through, slices.Max(append(put, 0)))
	}
	switch end := max(at, through); {
	case old.namespace == "" && !isVolume: // it was known as an id alone
		now.known = at
	case old.isRecounted(&now, labels.isChange(), at, end):
		if id, w, err = addVersion(t, node, workload.ShortID(short), w, &now, &labels, end); err != nil {
			return err
		}
	}
	if err := errors.Join(now.store(t, id), now.storeOthers(t, w, &old), labels.store(t, id)); err != nil {
		return err
	}
	return markChanged(t, &old, &now)
}

// place sets in the row of a version what the pod says that the workload is part of, if one is known.
func (b *booking) place(node *bookedNode, id int64, now *workloadRow, labels *labelChange) (placed bool, err error) {
	if node.jobs || now.kind != workload.Pod.String() && now.kind != workload.Container.String() {
		return false, nil // any user can send jobs, with any key
	}
	p, ok, err := findPlace(b.Tx, node.clusterName, node.id, now)
	if !ok || err != nil {
		return false, err
	}
	return true, p.set(b.Tx, id, now, labels)
}

// set sets a place in the row of a version, and the labels that it has and is to have.
func (p *place) set(t *db.Tx, id int64, now *workloadRow, labels *labelChange) (err error) {
	now.namespace, now.pod, now.job, now.run = p.namespace, p.pod, p.job, p.run
	switch {
	case now.kind == workload.Volume.String():
		now.name, now.pod = p.pod, ""
	case now.kind == workload.Pod.String():
		now.name = p.pod
	case p.container != "":
		now.container, now.name = p.container, p.pod+"/"+p.container
	}
	if p.isCarrier && !strings.HasSuffix(now.name, batch.ReservedSuffix) {
		now.name += batch.ReservedSuffix
	}
	labels.want = p.labels
	labels.have, err = labelsOf(t, id)
	return err
}

// findPlace returns the place of a workload of a node.
func findPlace(t *db.Tx, cluster string, node int64, w *workloadRow) (p place, ok bool, err error) {
	var labels, runUID, runName string
	scan := func(row db.Row) {
		if err = row.Scan(&p.namespace, &p.pod, &p.job, &labels, &runUID, &runName, &p.container); errors.Is(err, sql.ErrNoRows) {
			err = nil
		} else if err == nil {
			ok = true
		}
	}
	const columns = "SELECT p.namespace, p.name, p.job, p.labels, p.run_uid, p.run_name, "
	uid, container, isCarrier := w.carrierOf()
	switch w.kind {
	case workload.Volume.String():
		scan(t.QueryRow(columns+"'' FROM pod p WHERE p.cluster = $1 AND p.uid = $2 AND p.volume = 1", cluster, w.key))
	case workload.Pod.String():
		scan(t.QueryRow(columns+"'' FROM pod p WHERE p.cluster = $1 AND p.uid = $2 AND p.volume = 0", cluster, uid))
	case workload.Container.String():
		if isCarrier {
			scan(t.QueryRow(columns+"'' FROM pod p WHERE p.cluster = $1 AND p.uid = $2 AND p.volume = 0", cluster, uid))
			p.container = container
			break
		}
		scan(t.QueryRow(columns+"c.name FROM pod_container c JOIN pod p ON p.id = c.pod WHERE c.cluster = $1 AND c.container = $2", cluster, w.key))
		short, isID := workload.ShortIDOf(workload.ID(w.parent))
		if ok || err != nil || !isID {
			break
		}
		scan(t.QueryRow(columns+`'' FROM workload o JOIN pod p ON p.uid = o.key WHERE o.node = $1 AND o.short = $2 AND o.kind = 'pod' AND p.cluster = $3`, node, int64(short), cluster))
	}
	if !ok || err != nil {
		return p, false, err
	}
	p.isCarrier = isCarrier
	if p.run = (schema.RunRow{Exit: -1}); runUID != "" {
		if p.run, err = runOf(t, cluster, p.namespace, runUID, runName); err != nil {
			return p, false, err
		}
	}
	return p, true, json.Unmarshal([]byte(labels), &p.labels)
}
