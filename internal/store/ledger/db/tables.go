package db

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/schema"
)

// EnsureMinutes creates a day's tables of minutes if they do not exist.
func (t *Tx) EnsureMinutes(day int64) error {
	name := schema.UsageMinuteTable(day)
	if t.tables[name] || t.DB.tables[name] {
		return nil
	}
	t.tables[name] = true
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		if err := t.Define(s.Create(s.MinuteTable(day), schema.Minutes)); err != nil {
			return err
		}
		if err := t.indexRevs(s.MinuteTable(day), s.Key); err != nil {
			return err
		}
	}
	_, err := t.Exec("INSERT INTO kept (day, rows) VALUES ($1, 0) ON CONFLICT DO NOTHING", day)
	return err
}

// Upsert adds rows to a table, merging them with existing rows.
func (t *Tx) Upsert(table string, h schema.Pending) error {
	if !t.DB.IsSQLite() {
		return t.Put(table, h, h.Layout.MergeClause(table, t.DB.Dialect, false))
	}
	keys, err := t.announce(table, h)
	if err != nil {
		return err
	}
	return t.direct(func(c directConn) error {
		var args []driver.NamedValue
		for _, k := range keys {
			s := t.DB.shapeOf(table, h.Layout, h.Rows[k])
			args = s.arguments(args[:0], k, h.Rows[k])
			m := s.merges[table]
			found, err := c.exec(m.update, args)
			if err == nil && found == 0 {
				_, err = c.exec(m.insert, args)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// announce notes that rows of a table change, and returns their keys in order.
func (t *Tx) announce(table string, h schema.Pending) ([]schema.RowKey, error) {
	keys := h.SortedKeys()
	v := h.Layout.LevelOf(table)
	for _, k := range keys {
		t.touched[schema.Bucket{Level: v, Start: k.Minute}] = true
	}
	if v == schema.Minutes && h.Layout == schema.UsageLayout && len(keys) > 0 {
		return keys, t.countLate(table, keys)
	}
	return keys, nil
}

// Put inserts rows into a table; conflict is the clause for rows that exist.
func (t *Tx) Put(table string, h schema.Pending, conflict string) error {
	if len(h.Rows) == 0 {
		return nil
	}
	keys, err := t.announce(table, h)
	if err != nil {
		return err
	}
	width := len(h.Layout.Columns) + 2
	insert := fmt.Sprintf("INSERT INTO %s (%s) ", table, h.Layout.ColumnList())
	if t.DB.IsSQLite() {
		query := insert + "VALUES (?, ?" + strings.Repeat(", ?", len(h.Layout.Columns)) + ")" + conflict
		for _, k := range keys {
			args := append(make([]any, 0, width), k.Minute, k.ID)
			for _, v := range h.Rows[k] {
				args = append(args, v)
			}
			if _, err := t.Exec(query, args...); err != nil {
				return err
			}
		}
		return nil
	}
	columns, params := make([]any, width), make([]string, width)
	for i := range columns {
		column := make([]int64, len(keys))
		for j, k := range keys {
			switch i {
			case 0:
				column[j] = k.Minute
			case 1:
				column[j] = k.ID
			default:
				column[j] = h.Rows[k][i-2]
			}
		}
		columns[i], params[i] = column, fmt.Sprintf("$%d::bigint[]", i+1)
	}
	_, err = t.Exec(insert+"SELECT * FROM unnest("+strings.Join(params, ", ")+")"+conflict, columns...)
	return err
}

// countLate adds to the rows of a day those of usage that are new to its table and whose hours are folded,
// since folding counts only the rows that exist then. Keys are in order.
func (t *Tx) countLate(table string, keys []schema.RowKey) error {
	var late []schema.RowKey
	for _, k := range keys {
		if t.IsFolded(schema.Hours, schema.UsageLayout, k) {
			late = append(late, k)
		}
	}
	added := int64(len(late))
	if added == 0 {
		return nil
	}
	day := late[0].Minute - late[0].Minute%schema.DayMinutes
	for len(late) > 0 {
		minute := late[0].Minute
		var ids []int64
		for len(late) > 0 && late[0].Minute == minute && len(ids) < lateChunk {
			ids, late = append(ids, late[0].ID), late[1:]
		}
		there, err := t.Ints(fmt.Sprintf("SELECT count(*) FROM %s WHERE minute = %d AND %s IN (%s)", table, minute, schema.UsageLayout.Key, schema.JoinInts(ids)))
		if err != nil {
			return err
		}
		added -= there[0]
	}
	_, err := t.Exec("UPDATE kept SET rows = rows + $1 WHERE day = $2", added, day)
	return err
}

// lateChunk is how many rows one statement of countLate looks up.
const lateChunk = 1000

// MarkStale requests that the groups of a day be summed again from the start.
func (t *Tx) MarkStale(day int64) error {
	_, err := t.Exec("INSERT INTO stale_day (minute, next) VALUES ($1, 0) ON CONFLICT (minute) DO UPDATE SET next = 0", day)
	return err
}

// FinestLevel returns the finest level that is kept at a minute.
func (t *Tx) FinestLevel(minute int64) schema.Level {
	switch {
	case minute >= t.MinuteFloor:
		return schema.Minutes
	case minute >= t.HourFloor:
		return schema.Hours
	}
	return schema.Days
}

// Audit stores an audit line.
func (t *Tx) Audit(a registry.Audit) error {
	_, err := t.Exec("INSERT INTO audit (at_ns, actor, action, object, detail) VALUES ($1, $2, $3, $4, $5)",
		schema.Nanos(a.At), schema.Clean(a.Actor), schema.Clean(a.Action), schema.Clean(a.Object), schema.Clean(a.Detail))
	return err
}

// LockDays keeps readers from finding a day whose tables are being dropped.
func (t *Tx) LockDays() error {
	if t.DB.Dialect.BeginDrop == "" {
		return nil
	}
	return t.Define(t.DB.Dialect.BeginDrop)
}

func (t *Tx) DropTable(table string) error {
	if err := t.unprepare(table); err != nil {
		return err
	}
	delete(t.DB.tables, table)
	return t.Define("DROP TABLE IF EXISTS " + table)
}
