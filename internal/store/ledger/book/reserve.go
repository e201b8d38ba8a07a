package book

import (
	"database/sql"
	"errors"
	"maps"
	"slices"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A reserver changes what a pod reserves.
type reserver struct {
	*db.Tx
	pod   int64                  // its id
	spans map[string][]levelSpan // by container, in the order of time
	first int64                  // the first second of what changed; 0 is nothing
}

// reservePod stores what a pod or a volume reserves from a time on. watched is the column of pod_lease that says since when
// such are watched; at is in ns.
func reservePod(t *db.Tx, l pod.Lease, id int64, p *pod.Pod, watched string, at int64) error {
	if p.Scheduled.IsZero() || len(p.Reserved) == 0 {
		return nil
	}
	r, err := readSpans(t, id, 0)
	if err != nil {
		return err
	}
	var first int64
	err = t.QueryRow("SELECT "+watched+" FROM pod_lease WHERE cluster = $1", l.Cluster).Scan(&first)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	// Nothing is known from before the first watcher.
	from, to := max(p.Scheduled.Unix(), first/1e9), int64(0)
	if !p.Finished.IsZero() {
		to = min(p.Finished.Unix(), at/1e9)
	}
	gone := maps.Clone(r.spans)
	for _, now := range p.Reserved {
		c := schema.Clean(now.Container)
		delete(gone, c)
		spans, _ := vanish(r.spans[c], sinceOf(p, at), at/1e9)
		if len(spans) == 0 || !p.Guessed {
			spans = revise(r.spans[c], now.Levels.Cap(), from, to, sinceOf(p, at), at/1e9)
		}
		if err := r.set(c, spans); err != nil {
			return err
		}
	}
	for c, had := range gone { // the pod's own part, which may come again
		if err := r.set(c, revise(had, pod.Levels{CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}, from, to, sinceOf(p, at), at/1e9)); err != nil {
			return err
		}
	}
	if r.first == 0 {
		return nil
	}
	if _, err := t.Exec("UPDATE pod SET unsure = 0 WHERE id = $1 AND unsure <> 0", id); err != nil {
		return err
	}
	return r.putAgain()
}

// sinceOf returns the second at which the state before that of a pod was last confirmed.
func sinceOf(p *pod.Pod, at int64) int64 {
	if p.Since.IsZero() || p.Since.UnixNano() > at {
		return at / 1e9
	}
	return p.Since.Unix()
}

// releasePod ends what a pod or a volume reserves that is gone at a time, in ns. No node sees the end of a volume.
func releasePod(t *db.Tx, id int64, p *pod.Pod, at int64) error {
	r, err := readSpans(t, id, 0)
	if err != nil {
		return err
	}
	unsure := false
	for _, c := range slices.Sorted(maps.Keys(r.spans)) {
		spans, is := vanish(r.spans[c], sinceOf(p, at), at/1e9)
		unsure = unsure || is
		if err := r.set(c, spans); err != nil {
			return err
		}
	}
	if unsure {
		if _, err := t.Exec("UPDATE pod SET unsure = 1 WHERE id = $1 AND volume = 0", id); err != nil {
			return err
		}
	}
	return r.putAgain()
}

// readSpans reads what a pod reserves after a second.
func readSpans(t *db.Tx, id, after int64) (*reserver, error) {
	r := &reserver{Tx: t, pod: id, spans: map[string][]levelSpan{}}
	return r, t.Each(func(scan func(...any) error) error {
		var c string
		s, rough := levelSpan{}, 0
		err := scan(append([]any{&c}, s.targets(&rough)...)...)
		s.rough = rough != 0
		r.spans[c] = append(r.spans[c], s)
		return err
	}, "SELECT container, "+spanColumns+" FROM reservation WHERE pod = $1 AND (to_s = 0 OR to_s > $2) ORDER BY container, from_s", id, after)
}

// spanColumns are the columns of a span in the order of [levelSpan.targets].
const spanColumns = "from_s, to_s, rough, cpu, cpu_limit, memory, memory_limit, storage, gpu"

func (s *levelSpan) targets(rough *int) []any {
	return []any{&s.from, &s.to, rough, &s.CPU, &s.CPULimit, &s.Memory, &s.MemoryLimit, &s.Storage, &s.GPU}
}

// set replaces the spans of a container.
func (r *reserver) set(container string, now []levelSpan) error {
	had := r.spans[container]
	same := 0
	for same < len(had) && same < len(now) && had[same] == now[same] {
		same++
	}
	if first, ok := firstChange(had[same:], now[same:]); ok && (r.first == 0 || first < r.first) {
		r.first = first
	}
	for _, s := range had[same:] {
		if _, err := r.Exec("DELETE FROM reservation WHERE pod = $1 AND container = $2 AND from_s = $3", r.pod, container, s.from); err != nil {
			return err
		}
	}
	for _, s := range now[same:] {
		rough := 0
		if s.rough {
			rough = 1
		}
		_, err := r.Exec("INSERT INTO reservation (pod, container, "+spanColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
			r.pod, container, s.from, s.to, rough, s.CPU, s.CPULimit, s.Memory, s.MemoryLimit, s.Storage, s.GPU)
		if err != nil {
			return err
		}
	}
	r.spans[container] = now
	return nil
}

// firstChange returns the first second that differs between spans whose first ones are not equal.
func firstChange(had, now []levelSpan) (first int64, ok bool) {
	switch {
	case len(had) == 0 && len(now) == 0:
		return 0, false
	case len(had) == 0:
		return now[0].from, true
	case len(now) == 0:
		return had[0].from, true
	}
	a, b := had[0], now[0]
	if a.from == b.from && a.Levels == b.Levels && a.rough == b.rough { // only its end differs
		return min(end(a.to, b.to), end(b.to, a.to)), true
	}
	return min(a.from, b.from), true
}

// putAgain marks the rows of what changed as to be put again.
func (r *reserver) putAgain() error {
	if r.first == 0 {
		return nil
	}
	_, err := r.Exec("UPDATE pod SET right_minute = $2 WHERE id = $1 AND right_minute > $2", r.pod, r.first/60)
	return err
}

// settleEnds ends what pods reserved that vanished while they were not watched, where their nodes saw them end.
func settleEnds(t *db.Tx, cluster string) error {
	type gone struct{ id, ended, seen, through int64 }
	var pods []gone
	err := t.Each(func(scan func(...any) error) error {
		var g gone
		err := scan(&g.id, &g.ended, &g.seen, &g.through)
		pods = append(pods, g)
		return err
	}, `SELECT p.id, p.ended_ns, coalesce(max(CASE WHEN w.ended_ns <= p.ended_ns THEN w.ended_ns END), 0), coalesce(max(n.through_ns), 0) FROM pod p
		LEFT JOIN reservation_carrier r ON r.pod = p.id LEFT JOIN workload c ON c.id = r.workload LEFT JOIN node n ON n.id = c.node
		LEFT JOIN workload w ON w.key = p.uid AND w.kind IN ('pod', 'container') AND w.kind = 'pod' AND w.version_of = 0 AND w.node = c.node
		WHERE p.cluster = $1 AND p.unsure <> 0 GROUP BY p.id, p.ended_ns ORDER BY p.id DESC LIMIT 1000`, cluster)
	if err != nil {
		return err
	}
	for _, g := range pods {
		found := g.seen != 0
		if !found && g.through < g.ended {
			continue // its node may send more
		}
		if found {
			r, err := readSpans(t, g.id, 0)
			if err != nil {
				return err
			}
			for _, c := range slices.Sorted(maps.Keys(r.spans)) {
				if err := r.set(c, settle(r.spans[c], g.seen/1e9)); err != nil {
					return err
				}
			}
			if err := r.putAgain(); err != nil {
				return err
			}
		}
		if _, err := t.Exec("UPDATE pod SET unsure = 0 WHERE id = $1", g.id); err != nil {
			return err
		}
	}
	return nil
}

// rowsDone is the right_minute of a pod whose rows are all right, and need no others.
const rowsDone = schema.EndMinute
