package book

import (
	"context"
	"encoding/json"
	"time"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// ListVolumes records that the volumes of a cluster were listed, and returns the UIDs and names of those that had not ended
// before. Nothing that a volume reserved before the first list is known. A lease that is not the latest of its cluster is
// fault.ErrConflict.
func (k *Booker) ListVolumes(ctx context.Context, l pod.Lease, at time.Time) (live []pod.Volume, err error) {
	err = k.db.Write(ctx, func(t *db.Tx) error {
		live = nil
		if err := checkLease(t, l); err != nil {
			return err
		}
		if _, err := t.Exec("UPDATE pod_lease SET volumes_ns = $2 WHERE cluster = $1 AND volumes_ns = 0", l.Cluster, at.UnixNano()); err != nil {
			return err
		}
		return t.Each(func(scan func(...any) error) error {
			var v pod.Volume
			err := scan(&v.UID, &v.Name)
			live = append(live, v)
			return err
		}, "SELECT uid, name FROM pod WHERE cluster = $1 AND volume = 1 AND ended_ns = 0 ORDER BY uid", l.Cluster)
	})
	return live, db.Wrap(err, "listing volumes")
}

// BookVolumes stores volumes of a cluster and what they reserve. at is when they were seen so: a change of claim, job or
// labels counts from the next quarter of an hour on, one of the capacity at once. A volume with the UID of something else
// is ignored. Errors are those of [Booker.BookPods].
func (k *Booker) BookVolumes(ctx context.Context, l pod.Lease, volumes []pod.Volume, at time.Time) error {
	return eachLeased(ctx, k, l, volumes, "booking volumes", func(t *db.Tx, v *pod.Volume) error { return bookVolume(t, l, v, schema.Nanos(at)) })
}

// EndVolumes records that the API server does not have volumes any more. It takes their UIDs and names. Errors are those of
// [Booker.BookPods].
func (k *Booker) EndVolumes(ctx context.Context, l pod.Lease, volumes []pod.Volume, at time.Time) error {
	return eachLeased(ctx, k, l, volumes, "ending volumes", func(t *db.Tx, v *pod.Volume) error {
		ids, err := t.Ints("UPDATE pod SET ended_ns = $4 WHERE cluster = $1 AND uid = $2 AND name = $3 AND volume = 1 AND ended_ns = 0 RETURNING id",
			l.Cluster, schema.Clean(v.UID), schema.Clean(v.Name), at.UnixNano())
		for _, id := range ids {
			if err == nil {
				err = releasePod(t, id, &pod.Pod{Since: v.Since}, schema.Nanos(at))
			}
		}
		return err
	})
}

func bookVolume(t *db.Tx, l pod.Lease, v *pod.Volume, at int64) error {
	labels, err := json.Marshal(cleanLabels(v.Labels)) // keys are sorted
	if err != nil {
		return err
	}
	row, uid := podRow{namespace: schema.Clean(v.Namespace), name: schema.Clean(v.Name), job: schema.Clean(v.Job), labels: string(labels), volume: 1}, schema.Clean(v.UID)
	id, old, _, err := readPod(t, l.Cluster, uid)
	if err != nil || id != 0 && (old.volume == 0 || old.name != row.name) {
		return err
	}
	switch row.claims, row.released = old.claims, old.released; { // the last claim stays
	case v.Claim != "":
		row.claims, row.released = row.namespace+"/"+schema.Clean(v.Claim), 0
	case row.claims != "" && row.released == 0:
		row.released = at
	}
	if v.ClaimUnknown && old.namespace == row.namespace && isOfClaim(old.labels, v.Claim) {
		row.job, row.labels = old.job, old.labels
	}
	if id == 0 || row != old {
		if id, err = row.store(t, l.Cluster, uid, schema.Nanos(v.Created)); err != nil {
			return err
		}
		if err := placeAll(t, at, "SELECT workload FROM reservation_carrier WHERE pod = $1", id); err != nil {
			return err
		}
	}
	return reservePod(t, l, id, &pod.Pod{Scheduled: v.Created, Since: v.Since, Reserved: []pod.Reservation{{
		Levels: pod.Levels{Storage: v.Bytes, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}, "volumes_ns", at)
}

// isOfClaim reports whether the labels of a volume are those of a claim.
func isOfClaim(labels, claim string) bool {
	var m map[string]string
	return json.Unmarshal([]byte(labels), &m) == nil && m[pod.LabelClaim] == schema.Clean(claim)
}

// volumesNode returns the id of the pseudo-node of a cluster's volumes, which it creates if it is missing. now is in ns.
func volumesNode(t *db.Tx, cluster string, now int64) (string, error) {
	n := registry.VolumesNode(t.DB.Epoch(), cluster)
	_, err := t.Exec(`INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, certified_ns) VALUES ($1, $2, $3, $4, '', $5, $6, $7)
		ON CONFLICT (node_id) DO NOTHING`, n.ID, schema.Clean(n.Cluster), schema.Clean(n.Name), schema.Clean(n.MachineID), now, t.Rev, schema.Nanos(n.Certified))
	return n.ID, err
}

// volumeUsage returns what spans of a volume, and what is used of it, amount to from one second to another one; false if there
// are no spans.
func volumeUsage(spans []levelSpan, used []usedLevel, from, to int64) (u usage.Usage, some bool) {
	all, some := levelsUsage(spans, "", from, to)
	if some {
		u.Put(usage.StorageReserved, all.Amount[usage.StorageReserved], all.Quality.Get(usage.StorageReserved))
	}
	for _, s := range spans {
		if first, last := max(s.from, from), min(end(s.to, to), to); first < last {
			putUsed(&u, used, first, last)
		}
	}
	return u, some
}
