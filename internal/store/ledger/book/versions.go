package book

import (
	"fmt"
	"maps"
	"slices"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// SetVersion returns the surrogate id of the version of a workload that begins with minute from, and is followed by one that
// begins with next; 0 is the first version, and no other one. It creates what is missing, and removes versions between
// the two: a server that was restored from an older copy may have decided otherwise. Rows that are of another version
// than that of their time then become rows of that one.
func SetVersion(t *db.Tx, node int64, short workload.ShortID, from, next int64) (id int64, err error) {
	w, ok, err := t.KnownWorkload(node, short)
	if err != nil {
		return id, err
	}
	had := w.Begins()
	want := slices.DeleteFunc(slices.Clone(had), func(m int64) bool { return m > from && (next == 0 || m < next) })
	for _, m := range []int64{from, next} {
		if m != 0 && !slices.Contains(want, m) {
			want = append(want, m)
		}
	}
	slices.Sort(want)
	if ok && slices.Equal(had, want) {
		return w.At(from), nil
	}
	for _, m := range []int64{from, next} {
		if _, err := t.Version(node, short, m); err != nil {
			return id, err
		}
	}
	if w, _, err = t.KnownWorkload(node, short); err != nil {
		return id, err
	}
	id = w.At(from)
	if !ok {
		return id, nil
	}
	m := versionMove{Tx: t, node: node, of: w, begins: want}
	for _, v := range slices.Concat(had, want) {
		if slices.Contains(had, v) != slices.Contains(want, v) && (m.first == 0 || v < m.first) {
			m.first = v
		}
	}
	if err := m.find(); err != nil {
		return id, err
	}
	if err := m.move(); err != nil {
		return id, fmt.Errorf("moving rows of a version: %w", err)
	}
	if err := m.moveConnections(); err != nil {
		return id, fmt.Errorf("moving connections of a version: %w", err)
	}
	for _, begin := range had {
		if !slices.Contains(want, begin) {
			if err := m.remove(w.At(begin)); err != nil {
				return id, err
			}
			if err := t.ForgetVersion(node, short, begin); err != nil {
				return id, err
			}
		}
	}
	return id, nil
}

// A versionMove moves rows of a workload to the versions of their time.
type versionMove struct {
	*db.Tx
	node   int64
	of     db.Workload // with all versions, also those that are to be removed
	begins []int64     // with which the versions begin that it is to have, besides the first one
	first  int64       // all before this minute stays as it is
	end    int64       // there are no rows from here on
	kept   []int64     // days of minutes
	hosts  []int64     // that rows may be within; 0 is none
}

// find finds where there may be rows.
func (m *versionMove) find() (err error) {
	if m.hosts, err = m.Ints("SELECT DISTINCT host FROM within_day WHERE node = $1", m.node); err != nil {
		return err
	}
	m.hosts = append(m.hosts, 0)
	if m.kept, err = m.Ints("SELECT day FROM kept WHERE day >= $1 ORDER BY day", schema.DayOf(m.first)); err != nil {
		return err
	}
	last, err := m.Ints("SELECT coalesce(max(last_minute), 0) FROM workload WHERE id = $1 OR version_of = $1 AND version_of <> 0", m.of.ID)
	if err != nil {
		return err
	}
	m.end = last[0] + 1
	if len(m.kept) > 0 {
		m.end = max(m.end, m.kept[len(m.kept)-1]+schema.DayMinutes)
	}
	return nil
}

// beginOf returns the minute with which the version begins, of those that the workload is to have, to which a minute belongs.
func (m *versionMove) beginOf(minute int64) (begin int64) {
	for _, b := range m.begins {
		if b <= minute {
			begin = b
		}
	}
	return begin
}

// keys returns the keys of the rows of versions.
func (m *versionMove) keys(ids ...int64) (keys []int64) {
	for _, id := range ids {
		for _, h := range m.hosts {
			keys = append(keys, schema.Key(id, h))
		}
	}
	slices.Sort(keys)
	return keys
}

// move moves the rows.
func (m *versionMove) move() error {
	begins := m.versions()
	keys := m.keys(slices.Collect(maps.Keys(begins))...)
	c := NewChange(schema.UsageLayout)
	for at := schema.DayOf(m.first); at < m.end; {
		level := m.FinestLevel(at)
		span := schema.Range{Level: level, From: at, To: at + max(level.Width(), schema.HourMinutes)}
		if at = span.To; span.To <= m.first || level == schema.Minutes && !slices.Contains(m.kept, schema.DayOf(span.From)) {
			continue
		}
		rows := map[schema.RowKey][]int64{}
		err := c.each(m.Tx, level, span.From, span.To, keys, func(k schema.RowKey, values []int64) { rows[k] = slices.Clone(values) })
		if err != nil {
			return err
		}
		moved := map[schema.RowKey][]int64{}
		for k, values := range rows {
			id, within := schema.SplitKey(k.ID)
			begin := begins[id]
			if m.isOfTime(begin, k.Minute, spanOf(level, values)) {
				continue
			}
			to := schema.RowKey{Minute: k.Minute, ID: schema.Key(m.versionOf(begin, k.Minute), within)}
			if moved[to] == nil {
				moved[to] = make([]int64, len(values))
				if have := rows[to]; have != nil {
					copy(moved[to], have)
				}
			}
			c.wanted[0].AddSaturating(moved[to], values)
			moved[k] = make([]int64, len(values))
		}
		for k, values := range moved {
			values[schema.ColRev] = m.Rev
			c.Set(replica.Resolution(level), k, values)
		}
	}
	_, err := c.Apply(m.Tx, 0)
	return err
}

// moveConnections moves the connections of hours.
func (m *versionMove) moveConnections() error {
	begins := m.versions()
	had, moved, gone := Sketches{}, Sketches{}, []schema.RowKey{}
	err := db.Each(m.Ctx, m.SQL, func(scan func(...any) error) error {
		var k schema.RowKey
		var stored []byte
		if err := scan(&k.Minute, &k.ID, &stored); err != nil {
			return err
		}
		if s, err := connection.Decode(stored); err == nil {
			had[k] = s
		}
		return nil
	}, "SELECT minute, workload, sketch FROM connections WHERE workload IN ("+schema.JoinInts(slices.Collect(maps.Keys(begins)))+") AND minute >= $1", schema.DayOf(m.first))
	if err != nil {
		return m.DB.Fault(err)
	}
	for k, s := range had {
		to := schema.RowKey{Minute: k.Minute, ID: m.versionOf(begins[k.ID], k.Minute)}
		if to == k {
			continue
		}
		if moved[to] == nil {
			moved[to] = had[to]
		}
		moved.add(to, s)
		gone = append(gone, k)
	}
	for _, k := range gone {
		if _, err := m.Exec("DELETE FROM connections WHERE minute = $1 AND workload = $2", k.Minute, k.ID); err != nil {
			return err
		}
	}
	return PutConnections(m.Tx, moved)
}

// versions returns the minutes with which all versions begin, also those that are to be removed, by id.
func (m *versionMove) versions() map[int64]int64 {
	begins := map[int64]int64{m.of.ID: 0}
	for _, b := range m.of.Begins() {
		begins[m.of.At(b)] = b
	}
	return begins
}

// versionOf returns the version to which a row is moved from one that begins with a minute: of a longer row, the one in which
// the removed one began.
func (m *versionMove) versionOf(begin, minute int64) int64 {
	return m.of.At(m.beginOf(max(minute, begin)))
}

// isOfTime reports whether a row that begins with a minute can be one of the version with a beginning.
func (m *versionMove) isOfTime(begin, minute, width int64) bool {
	if begin != 0 && !slices.Contains(m.begins, begin) {
		return false
	}
	// Its end is the beginning of the next one.
	return begin < minute+width && m.beginOf(minute) <= begin
}

// spanOf returns the minutes that a row of a level holds: it may hold a coarser span.
func spanOf(v schema.Level, values []int64) int64 {
	width := v.Width()
	for held := v + 1; held <= schema.Days; held++ {
		if values[schema.ColUncertainty]&(schema.HoldsHour<<(held-schema.Hours)) != 0 {
			width = held.Width()
		}
	}
	return width
}

// remove deletes a version and its rows, which are empty.
func (m *versionMove) remove(id int64) error {
	keys := schema.JoinInts(m.keys(id))
	remove := func(table string, from, to, width int64) error {
		var minutes []int64
		for at := from; at < to; at += width {
			minutes = append(minutes, at)
		}
		for some := range slices.Chunk(minutes, schema.DayMinutes) {
			// Not prepared: the text differs each time.
			if err := m.Define(fmt.Sprintf("DELETE FROM %s WHERE minute IN (%s) AND workload IN (%s)", table, schema.JoinInts(some), keys)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, day := range m.kept {
		if err := remove(schema.UsageMinuteTable(day), day, day+schema.DayMinutes, 1); err != nil {
			return err
		}
	}
	for _, v := range []schema.Level{schema.Hours, schema.Days} {
		if err := remove(schema.Range{Level: v}.Table(schema.UsageLayout), schema.DayOf(m.first), m.end, v.Width()); err != nil {
			return err
		}
	}
	for _, statement := range []string{"DELETE FROM connections WHERE workload = $1", "DELETE FROM workload_label WHERE workload = $1", "DELETE FROM workload WHERE id = $1"} {
		if _, err := m.Exec(statement, id); err != nil {
			return err
		}
	}
	return nil
}
