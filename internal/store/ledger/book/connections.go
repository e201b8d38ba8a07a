package book

import (
	"maps"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Sketches are connections by the hour, and by the version of a workload that has them.
type Sketches map[schema.RowKey]*connection.Sketch

// add adds connections. Nil ones are none.
func (s Sketches) add(k schema.RowKey, c *connection.Sketch) { s[k] = connection.Merged(s[k], c) }

// bookConnections adds the connections of an entry to the hours of its versions of workloads. Those of hours that are dropped are left
// out. They have no quota: traffic with connections has a row in each hour too.
func (b *booking) bookConnections(e *batch.Entry, n *bookedNode) error {
	if n.jobs { // any user can send jobs
		return nil
	}
	for i := range e.Connections {
		c := &e.Connections[i]
		hour := c.Minute - c.Minute%schema.HourMinutes
		if hour < b.HourFloor {
			continue
		}
		w, err := b.workload(n, c.Workload)
		if err != nil {
			return err
		}
		b.connections.add(schema.RowKey{Minute: hour, ID: w.At(c.Minute)}, c.Sketch)
	}
	return nil
}

// flushConnections merges the connections of the transaction's entries into those of their hours.
func (b *booking) flushConnections() error {
	hours := map[int64]map[int64]bool{} // workloads
	for k := range b.connections {
		if hours[k.Minute] == nil {
			hours[k.Minute] = map[int64]bool{}
		}
		hours[k.Minute][k.ID] = true
	}
	for hour, workloads := range hours {
		err := eachOf(b.Tx, workloads, func(scan func(...any) error) error {
			k := schema.RowKey{Minute: hour}
			var stored []byte
			if err := scan(&k.ID, &stored); err != nil {
				return err
			}
			// A sketch that cannot be read is a finding of mete check, and is replaced.
			if had, err := connection.Decode(stored); err == nil {
				b.connections.add(k, had)
			}
			return nil
		}, "SELECT workload, sketch FROM connections WHERE minute = $1 AND workload IN (%s)", hour)
		if err != nil {
			return err
		}
	}
	return PutConnections(b.Tx, b.connections)
}

// PutConnections stores connections in place of what their hours had. It leaves out those whose sums do not fit: no machine has them.
func PutConnections(t *db.Tx, s Sketches) error {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(s)), func(k schema.RowKey) bool { return s[k].Validate() != nil })
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, schema.RowKey.Compare)
	const insert, conflict = "INSERT INTO connections (minute, workload, sketch, rev) ", " ON CONFLICT (minute, workload) DO UPDATE SET sketch = excluded.sketch, rev = excluded.rev"
	if t.DB.IsSQLite() {
		for _, k := range keys {
			if _, err := t.Exec(insert+"VALUES ($1, $2, $3, $4)"+conflict, k.Minute, k.ID, connection.Encode(s[k]), t.Rev); err != nil {
				return err
			}
		}
		return nil
	}
	minutes, workloads, sketches := make([]int64, len(keys)), make([]int64, len(keys)), make([][]byte, len(keys))
	for i, k := range keys {
		minutes[i], workloads[i], sketches[i] = k.Minute, k.ID, connection.Encode(s[k])
	}
	_, err := t.Exec(insert+"SELECT *, $4::bigint FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])"+conflict, minutes, workloads, sketches, t.Rev)
	return err
}
