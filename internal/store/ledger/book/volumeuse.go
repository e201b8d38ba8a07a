package book

import (
	"maps"
	"slices"
	"sort"
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
	// lasts, since what no machine mounts does not change, but as modelled.
	freshMinutes = 15
	// lateMinutes is how far behind the rows of its volume a figure may be. It is a little more than what agents keep while they
	// are without their server: each figure of an earlier time would have all rows after it put again.
	lateMinutes = 25 * schema.HourMinutes
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
	}, `SELECT minute, bytes FROM volume_use
		WHERE pod = $1 AND minute >= coalesce((SELECT max(minute) FROM volume_use WHERE pod = $1 AND minute <= $2), 0) ORDER BY minute`, volume, from)
}

// bookUsed stores the figures of volumes that pods of the node mount. Others are left out, as are those of a time whose minutes
// are dropped, or long before the rows that are put. Of several figures in a minute, as of several nodes, the largest one
// counts, in whatever order they come.
func (b *booking) bookUsed(e *batch.Entry, n *bookedNode) error {
	if n.jobs || len(e.Volumes) == 0 { // any user can send jobs
		return nil
	}
	pods, err := b.findMounting(n, e.Volumes)
	if err != nil {
		return err
	}
	volumes, err := b.findVolumes(n.clusterName, pods, e.Volumes)
	if err != nil {
		return err
	}
	levels := map[int64]map[int64]int64{}
	for i := range e.Volumes {
		f := &e.Volumes[i]
		at := schema.Nanos(f.At)
		minute, v := at/int64(time.Minute), pods[schema.Clean(f.Pod)].volumeAt(volumes[schema.Clean(f.Volume)], at)
		if v == nil || !v.hasAlone(f.Size, at) || minute < max(b.MinuteFloor, v.put-lateMinutes) || minute >= schema.EndMinute {
			continue
		}
		if levels[v.id] == nil {
			levels[v.id] = map[int64]int64{}
		}
		levels[v.id][minute] = max(levels[v.id][minute], pod.Levels{Storage: f.Used}.Cap().Storage)
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
		changed, err := b.Exec(`INSERT INTO volume_use (pod, minute, bytes) VALUES ($1, $2, $3)
			ON CONFLICT (pod, minute) DO UPDATE SET bytes = excluded.bytes WHERE volume_use.bytes < excluded.bytes`, volume, minute, levels[minute])
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
	_, err := b.Exec(`DELETE FROM volume_use
		WHERE pod = $1 AND minute < (SELECT max(u.minute) FROM volume_use u WHERE u.pod = $1 AND u.minute <= $2)`, volume, b.MinuteFloor)
	return err
}
