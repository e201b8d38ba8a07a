package book

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A usedLevel is how much of a volume is used, in bytes, from the start of a minute until the next level.
type usedLevel struct{ minute, bytes int64 }

const (
	// freshMinutes is for how long a level counts as measured: agents measure each five minutes. After that it still
	// holds, since what no machine mounts does not change, but as modelled.
	freshMinutes = 15
	// maxStrange limits the figures of an entry that are of no volume that a pod of the node mounts: the rest is left out.
	maxStrange = 200
	// clockSlack is how far the clocks of a node and of the API server may be apart, beside what the receiver corrects, and how
	// late the API server may say that a pod or a volume is new.
	clockSlack = 2 * time.Minute
)

// putUsed adds to u what is used of a volume from one second to another one.
func putUsed(u *usage.Usage, levels []usedLevel, from, to int64) {
	for i, l := range levels {
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
	if len(e.Volumes) == 0 || n.jobs { // any user can send jobs
		return nil
	}
	type pair struct{ pod, volume string }
	mounts, strange, levels := map[pair]mountedVolume{}, 0, map[int64]map[int64]int64{}
	for i := range e.Volumes {
		v := &e.Volumes[i]
		at, of := schema.Nanos(v.At), pair{v.Pod, v.Volume}
		m, known := mounts[of]
		if !known || m.volume != 0 && !m.holds(at) { // the pod or the volume is another one
			if strange == maxStrange {
				continue
			}
			var err error
			if m, err = b.findMounted(n, v.Pod, v.Volume, at); err != nil {
				return err
			}
			if mounts[of] = m; !m.holds(at) {
				strange++
			}
		}
		minute := at / int64(time.Minute)
		if !m.holds(at) || minute < b.MinuteFloor || minute >= schema.EndMinute {
			continue
		}
		if levels[m.volume] == nil {
			levels[m.volume] = map[int64]int64{}
		}
		bytes := pod.Levels{Storage: v.Used}.Cap().Storage
		levels[m.volume][minute] = max(levels[m.volume][minute], bytes)
	}
	for _, volume := range slices.Sorted(maps.Keys(levels)) {
		if err := b.storeUsed(n, volume, levels[volume]); err != nil {
			return err
		}
	}
	return nil
}

// storeUsed stores levels of a volume by minute, and drops those that no row will need.
func (b *booking) storeUsed(n *bookedNode, volume int64, levels map[int64]int64) error {
	first := int64(schema.EndMinute)
	for _, minute := range slices.Sorted(maps.Keys(levels)) {
		ok, err := b.takeBytes(n, rowBytes)
		if !ok || err != nil {
			return err
		}
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
	_, err := b.Exec(`DELETE FROM volume_use WHERE pod = $1 AND minute < (SELECT max(u.minute) FROM volume_use u JOIN pod p ON p.id = u.pod
		WHERE u.pod = $1 AND u.minute <= p.right_minute AND u.minute <= $2)`, volume, b.MinuteFloor)
	return err
}

// A mountedVolume is a volume that a pod of a node mounts.
type mountedVolume struct {
	volume   int64 // its id, 0 if there is none
	from, to int64 // when a figure may be of it, ns
}

func (m mountedVolume) holds(at int64) bool { return m.volume != 0 && m.from <= at && at <= m.to }

// findMounted returns the volume with a name that a pod of a node mounted at a time, in ns.
func (b *booking) findMounted(n *bookedNode, uid, name string, at int64) (m mountedVolume, err error) {
	var namespace, claims, labels string
	var own int
	var created, ended, volumeCreated, volumeEnded int64
	// A pod is on the node on which the ledger has what it reserves, or else on that with the name of its node.
	err = b.QueryRow(`SELECT p.namespace, p.claims, p.created_ns, p.ended_ns, CASE WHEN EXISTS (SELECT 1 FROM reservation_carrier c WHERE c.pod = p.id)
			THEN CASE WHEN EXISTS (SELECT 1 FROM reservation_carrier c JOIN workload w ON w.id = c.workload WHERE c.pod = p.id AND w.node = $3) THEN 1 ELSE 0 END
			ELSE CASE WHEN EXISTS (SELECT 1 FROM node o WHERE o.id = $3 AND o.name = p.node) THEN 1 ELSE 0 END END
		FROM pod p WHERE p.cluster = $1 AND p.uid = $2 AND p.volume = 0`, n.clusterName, schema.Clean(uid), n.id).Scan(&namespace, &claims, &created, &ended, &own)
	if errors.Is(err, sql.ErrNoRows) || err == nil && own == 0 {
		return m, nil
	} else if err != nil {
		return m, err
	}
	// A name may have been that of another volume before.
	err = b.QueryRow("SELECT id, labels, created_ns, ended_ns FROM pod WHERE cluster = $1 AND name = $2 AND volume = 1 AND namespace = $3 AND created_ns <= $4 ORDER BY created_ns DESC, id DESC LIMIT 1",
		n.clusterName, schema.Clean(name), namespace, at+int64(clockSlack)).Scan(&m.volume, &labels, &volumeCreated, &volumeEnded)
	if errors.Is(err, sql.ErrNoRows) {
		return m, nil
	} else if err != nil {
		return m, err
	}
	if claim := claimOf(labels); claim == "" || !slices.Contains(strings.Split(claims, ","), claim) {
		return mountedVolume{}, nil
	}
	last := func(ended int64) int64 { return cmp.Or(ended, math.MaxInt64-int64(clockSlack)) + int64(clockSlack) }
	m.from, m.to = max(created, volumeCreated)-int64(clockSlack), min(last(ended), last(volumeEnded))
	return m, nil
}

// claimOf returns the claim that a volume with these labels is bound to, "" if it is bound to none.
func claimOf(labels string) string {
	var m map[string]string
	if json.Unmarshal([]byte(labels), &m) != nil {
		return ""
	}
	return m[pod.LabelClaim]
}

// joinClaims returns the names of claims as the ledger has them. No name that Kubernetes takes has a comma.
func joinClaims(claims []string) string {
	var kept []string
	for _, c := range claims {
		if c = schema.Clean(c); c != "" && !strings.Contains(c, ",") {
			kept = append(kept, c)
		}
	}
	return strings.Join(kept, ",")
}
