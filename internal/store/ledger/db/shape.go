package db

import (
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A shape is the columns of a row of usage that its resources need. Rows are written by statements
// with these columns alone: all others are 0, which changes no row, and SQLite computes the value
// and the check of each column that a statement names.
type shape struct {
	layout  *schema.Layout
	columns []int             // their indexes in schema.UsageLayout
	upserts map[string]string // statements by table
}

// The rows of a machine have a few shapes. A client that sends others makes the writer keep at most
// maxShapes of them for each of maxShapedTables, and use the statement for all columns elsewhere.
const (
	maxShapes       = 32
	maxShapedTables = 40 // a month of minutes, hours, and days
)

// shapeOf returns the shape in which to write a row of usage to a table.
func (d *DB) shapeOf(table string, values []int64) *shape {
	set := usage.Set(values[schema.ColPresent]) & usage.All
	for i, v := range values[schema.ColRest:] {
		if v != 0 {
			set |= usage.SetOf(usage.Resource(i + 1))
		}
	}
	if s := d.shapes[set]; s != nil && s.upserts[table] != "" {
		return s
	}
	if !d.shaped[table] && len(d.shaped) >= maxShapedTables || d.shapes[set] == nil && len(d.shapes) >= maxShapes {
		set = usage.All
	} else {
		d.shaped[table] = true
	}
	s := d.shapes[set]
	if s == nil {
		s = newShape(set)
		d.shapes[set] = s
	}
	if s.upserts[table] == "" {
		s.upserts[table] = "INSERT INTO " + table + " (" + s.layout.ColumnList() + ") VALUES (?, ?" + strings.Repeat(", ?", len(s.columns)) + ")" +
			s.layout.MergeClause(table, d.Dialect, false)
	}
	return s
}

func newShape(set usage.Set) *shape {
	s := &shape{layout: &schema.Layout{Key: schema.UsageLayout.Key}, upserts: map[string]string{}}
	for i, c := range schema.UsageLayout.Columns {
		if i < schema.ColRest || set.Has(usage.Resource(i-schema.ColRest+1)) {
			s.layout.Columns, s.columns = append(s.layout.Columns, c), append(s.columns, i)
		}
	}
	return s
}

// forgetShapes forgets the statements on a table that is about to be dropped.
func (d *DB) forgetShapes(table string) {
	delete(d.shaped, table)
	for _, s := range d.shapes {
		delete(s.upserts, table)
	}
}
