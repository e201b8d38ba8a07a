package book

import (
	"cmp"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A talkKey is an hour of a version of a workload.
type talkKey struct{ minute, workload int64 }

// bookConnections adds the connections of an entry to the hours of its versions of workloads. Those of hours that are dropped are left
// out. They have no quota: a workload has a larger row in each hour anyway.
func (b *booking) bookConnections(e *batch.Entry, n *bookedNode) error {
	if n.jobs { // any user can send jobs
		return nil
	}
	for i := range e.Connections {
		c := &e.Connections[i]
		hour := c.Minute - c.Minute%schema.Hours.Width()
		if hour < b.HourFloor || c.Minute >= schema.EndMinute {
			continue
		}
		w, err := b.workload(n, c.Workload)
		if err != nil {
			return err
		}
		k := talkKey{hour, w.At(c.Minute)}
		b.talks[k] = connection.Merged(b.talks[k], c.Sketch)
	}
	return nil
}

// flushConnections merges the connections of the transaction's entries into those of their hours.
func (b *booking) flushConnections() error {
	keys := slices.SortedFunc(maps.Keys(b.talks), func(x, y talkKey) int {
		return cmp.Or(cmp.Compare(x.minute, y.minute), cmp.Compare(x.workload, y.workload))
	})
	for _, k := range keys {
		var had []byte
		err := b.QueryRow("SELECT sketch FROM connections WHERE minute = $1 AND workload = $2", k.minute, k.workload).Scan(&had)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		sum := b.talks[k]
		if err == nil {
			// A sketch that cannot be read is a finding of mete check, and is replaced.
			if before, err := connection.Decode(had); err == nil {
				sum = connection.Merged(before, sum)
			}
		}
		if sum.Validate() != nil {
			continue // amounts that no machine has: their sum does not fit
		}
		_, err = b.Exec(`INSERT INTO connections (minute, workload, sketch, rev) VALUES ($1, $2, $3, $4)
			ON CONFLICT (minute, workload) DO UPDATE SET sketch = excluded.sketch, rev = excluded.rev`, k.minute, k.workload, connection.Encode(sum), b.Rev)
		if err != nil {
			return err
		}
	}
	return nil
}
