package book

import (
	"database/sql"
	"errors"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A usedLevel is how much of a volume is used, in bytes, from the start of a minute until the next level.
type usedLevel struct{ minute, bytes int64 }

const (
	// freshMinutes is for how long a level counts as measured: agents measure each five minutes. After that it still
	// lasts, since what no machine mounts does not change, but as modelled.
	freshMinutes = 15
	// maxForeign limits the pods of an entry that are not on the node, which cost a query each: the rest is left out.
	maxForeign = 200
	// maxClaimed limits the volumes with one claim that are looked at, the latest ones.
	maxClaimed = 20
	// maxClaims limits the names of a pod's claims, in bytes.
	maxClaims = 4 << 10
	// clockSlack is how far the clocks of a node and of the API server may be apart, beside what the receiver corrects, and how
	// late the API server may say that a pod or a volume is new.
	clockSlack = int64(2 * time.Minute)
	// silence is after which time without a window another node with the same host name counts as the machine.
	silence = int64(15 * time.Minute)
)

// putUsed adds to u what is used of a volume from one second to another one.
func putUsed(u *usage.Usage, levels []usedLevel, from, to int64) {
	first := max(0, sort.Search(len(levels), func(i int) bool { return levels[i].minute*60 > from })-1) // which lasts at from
	for i := first; i < len(levels) && levels[i].minute*60 < to; i++ {
		l := levels[i]
		begin, stale, last := max(l.minute*60, from), (l.minute+freshMinutes)*60, to
		if i+1 < len(levels) {
			last = min(levels[i+1].minute*60, to)
		}
		if middle := min(max(stale, begin), last); begin < middle {
			u.Put(usage.Storage, l.bytes*(middle-begin), usage.Measured)
		}
		if stale = max(stale, begin); stale < last {
			u.Put(usage.Storage, l.bytes*(last-stale), usage.Modelled)
		}
	}
}

// readUsed reads how much of a volume is used from a minute on.
func readUsed(t *db.Tx, volume, from int64) (levels []usedLevel, err error) {
	return levels, t.Each(func(scan func(...any) error) error {
		var l usedLevel
		err := scan(&l.minute, &l.bytes)
		levels = append(levels, l)
		return err
	}, "SELECT minute, bytes FROM volume_use WHERE pod = $1 AND minute >= coalesce((SELECT max(minute) FROM volume_use WHERE pod = $1 AND minute <= $2), 0) ORDER BY minute",
		volume, from)
}

// bookUsed stores the figures of volumes that pods of the node mount. Others are left out, as are those of a time whose minutes
// are dropped. Of several figures in a minute, as of several nodes, the largest one counts, in whatever order they come.
func (b *booking) bookUsed(e *batch.Entry, n *bookedNode) error {
	if n.jobs { // any user can send jobs
		return nil
	}
	pods, foreign, levels := map[string]*claimingPod{}, 0, map[int64]map[int64]int64{}
	for i := range e.Volumes {
		v := &e.Volumes[i]
		p, known := pods[v.Pod]
		if !known && foreign < maxForeign {
			var err error
			if p, err = b.findClaiming(n, v.Pod); err != nil {
				return err
			}
			if pods[v.Pod] = p; p == nil {
				foreign++
			}
		}
		at := schema.Nanos(v.At)
		minute, volume := at/int64(time.Minute), p.volumeAt(v.Volume, at)
		if volume == nil || !volume.hasAlone(v.Size) || minute < b.MinuteFloor || minute >= schema.EndMinute {
			continue
		}
		if levels[volume.id] == nil {
			levels[volume.id] = map[int64]int64{}
		}
		bytes := pod.Levels{Storage: v.Used}.Cap().Storage
		levels[volume.id][minute] = max(levels[volume.id][minute], bytes)
	}
	for _, volume := range slices.Sorted(maps.Keys(levels)) {
		if err := b.storeUsed(volume, levels[volume]); err != nil {
			return err
		}
	}
	return nil
}

// storeUsed stores levels of a volume by minute, and drops those of dropped minutes but for the last one. They have no quota: a
// volume has a larger row in each minute anyway.
func (b *booking) storeUsed(volume int64, levels map[int64]int64) error {
	first := int64(schema.EndMinute)
	for _, minute := range slices.Sorted(maps.Keys(levels)) {
		changed, err := b.Exec("INSERT INTO volume_use (pod, minute, bytes) VALUES ($1, $2, $3) ON CONFLICT (pod, minute) DO UPDATE SET bytes = excluded.bytes WHERE volume_use.bytes < excluded.bytes",
			volume, minute, levels[minute])
		if err != nil {
			return err
		}
		if changed > 0 {
			first = min(first, minute)
		}
	}
	if first == schema.EndMinute {
		return nil
	}
	if _, err := b.Exec("UPDATE pod SET right_minute = $2 WHERE id = $1 AND right_minute > $2", volume, first); err != nil {
		return err
	}
	_, err := b.Exec("DELETE FROM volume_use WHERE pod = $1 AND minute < (SELECT max(u.minute) FROM volume_use u WHERE u.pod = $1 AND u.minute <= $2)", volume, b.MinuteFloor)
	return err
}

// A claimingPod is a pod of a node, with the volumes of its claims by name, the latest one first.
type claimingPod struct {
	from, to int64 // when it was on the node, ns
	volumes  map[string][]claimedVolume
}

// A claimedVolume is a volume that is bound to a claim, or that was bound to it last.
type claimedVolume struct{ id, from, to, capacity int64 }

// volumeAt returns the volume with a name that the pod may have mounted at a time, in ns: that of the time or else the nearest
// one, as clocks differ. It is nil if there is none.
func (p *claimingPod) volumeAt(name string, at int64) (found *claimedVolume) {
	if p == nil || at < p.from-clockSlack || p.to+clockSlack < at {
		return nil
	}
	least := clockSlack + 1
	for i := range p.volumes[name] {
		v := &p.volumes[name][i]
		if away := max(v.from-at, at-v.to, 0); away < least {
			found, least = v, away
		}
	}
	return found
}

// hasAlone reports whether a file system of a size has nothing but the volume: one with another size than the volume's capacity may
// have more, as an export of which the volume is a directory. 0 is one on a block device.
func (v *claimedVolume) hasAlone(size int64) bool {
	return size == 0 || v.capacity-v.capacity/4 <= size && size <= v.capacity+v.capacity/4
}

// findClaiming returns a pod of the node; nil if there is none.
func (b *booking) findClaiming(n *bookedNode, uid string) (*claimingPod, error) {
	id, row, created, err := b.readClaims(n.clusterName, schema.Clean(uid))
	if id == 0 || err != nil {
		return nil, err
	}
	since, is, err := b.onNode(n, id, row.node)
	if !is || err != nil {
		return nil, err
	}
	p := &claimingPod{max(created, since), lasting(row.ended), map[string][]claimedVolume{}}
	for claim := range strings.SplitSeq(row.claims, ",") {
		if claim == "" {
			continue
		}
		err := b.Each(func(scan func(...any) error) error {
			var name string
			var v claimedVolume
			err := scan(&v.id, &name, &v.from, &v.to, &v.capacity)
			v.to = lasting(v.to)
			p.volumes[name] = append(p.volumes[name], v)
			return err
		}, `SELECT v.id, v.name, v.created_ns, v.ended_ns, coalesce((SELECT r.storage FROM reservation r WHERE r.pod = v.id ORDER BY r.from_s DESC LIMIT 1), 0)
			FROM pod v WHERE v.cluster = $1 AND v.claims = $2 AND v.volume = 1 ORDER BY v.created_ns DESC, v.id DESC LIMIT $3`, n.clusterName, claimKey(row.namespace, claim), maxClaimed)
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// readClaims reads what findClaiming needs of a pod; id is 0 if it is not stored.
func (b *booking) readClaims(cluster, uid string) (id int64, p podRow, created int64, err error) {
	err = b.QueryRow("SELECT id, namespace, node, claims, created_ns, ended_ns FROM pod WHERE cluster = $1 AND uid = $2 AND volume = 0", cluster, uid).
		Scan(&id, &p.namespace, &p.node, &p.claims, &created, &p.ended)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return id, p, created, err
}

// onNode reports whether a pod is on a node, and since when, ns. It is on that on which the ledger has what it reserves, or else on
// that with the name of its node in the cluster. A machine may enroll again: once that node is silent, the pod is on one with this
// host name.
func (b *booking) onNode(n *bookedNode, pod int64, name string) (since int64, is bool, err error) {
	some, through := false, int64(0)
	read := func(query string, args ...any) error {
		return b.Each(func(scan func(...any) error) error {
			var id, last int64
			var machine string
			err := scan(&id, &last, &machine)
			if !registry.IsJobsMachine(machine) {
				some, is, through = true, is || id == n.id, max(through, last)
			}
			return err
		}, query, args...)
	}
	err = read("SELECT o.id, o.through_ns, o.machine_id FROM reservation_carrier c JOIN workload w ON w.id = c.workload JOIN node o ON o.id = w.node WHERE c.pod = $1", pod)
	if err == nil && !some {
		err = read("SELECT o.id, o.through_ns, o.machine_id FROM node o WHERE o.cluster = $1 AND o.name = $2 AND o.source = 0", n.clusterName, name)
	}
	if is || err != nil {
		return 0, is, err
	}
	host, _, _ := strings.Cut(n.name, "~") // see registry.uniqueName
	return through + silence + clockSlack, name != "" && host == name, nil
}

// lasting returns the time, in ns, at which something ended, or one that never comes.
func lasting(ended int64) int64 {
	if ended == 0 {
		return math.MaxInt64 - clockSlack
	}
	return ended
}

// claimKey is the column claims of a volume: the namespace and name of its claim.
func claimKey(namespace, claim string) string { return namespace + "/" + claim }

// joinClaims returns the names of claims as the ledger has them. No name that Kubernetes takes has a comma.
func joinClaims(claims []string) string {
	var kept strings.Builder
	for _, c := range claims {
		if c = schema.Clean(c); c == "" || strings.Contains(c, ",") || kept.Len()+len(c) >= maxClaims {
			continue
		}
		if kept.Len() > 0 {
			kept.WriteByte(',')
		}
		kept.WriteString(c)
	}
	return kept.String()
}
