package db

import (
	"database/sql/driver"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A shape is the columns of a row that its resources need. Rows are written by statements with these
// columns alone: all others are 0, which changes no row, and SQLite computes the value and the check of
// each column that a statement names.
type shape struct {
	layout  *schema.Layout
	columns []int                    // their indexes in the layout of the table
	merges  map[string]rowStatements // by table
}

// A shapeKey identifies a shape.
type shapeKey struct {
	of  *schema.Layout
	set usage.Set
}

// rowStatements merge a row into a table. An update that finds no row is followed by an insert. An upsert costs
// twice as much as an update: before it finds the row it checks all columns of a new one.
type rowStatements struct{ update, insert string }

// The rows of a machine have a few shapes. A client that sends others makes the writer keep at most
// maxShapes of them for each of maxShapedTables, and use the statements for all columns elsewhere.
const (
	maxShapes       = 32
	maxShapedTables = 80 // of workloads and of nodes: a month of minutes, hours, and days
)

// shapeOf returns the shape in which to write a row to a table.
func (d *DB) shapeOf(table string, of *schema.Layout, values []int64) *shape {
	set := usage.Set(values[schema.ColPresent]) & usage.All
	for i, v := range values[of.FirstResource():] {
		if v != 0 {
			set |= usage.SetOf(usage.Resource(i + 1))
		}
	}
	if s := d.shapes[shapeKey{of, set}]; s != nil && s.merges[table].update != "" {
		return s
	}
	if !d.shaped[table] && len(d.shaped) >= maxShapedTables || d.shapes[shapeKey{of, set}] == nil && len(d.shapes) >= maxShapes {
		set = usage.All
	} else {
		d.shaped[table] = true
	}
	s := d.shapes[shapeKey{of, set}]
	if s == nil {
		s = newShape(of, set)
		d.shapes[shapeKey{of, set}] = s
	}
	if s.merges[table].update == "" {
		var m rowStatements
		m.update, m.insert = s.layout.RowStatements(table)
		s.merges[table] = m
	}
	return s
}

func newShape(of *schema.Layout, set usage.Set) *shape {
	s := &shape{layout: &schema.Layout{Key: of.Key}, merges: map[string]rowStatements{}}
	first := of.FirstResource()
	for i, c := range of.Columns {
		if i < first || set.Has(usage.Resource(i-first+1)) {
			s.layout.Columns, s.columns = append(s.layout.Columns, c), append(s.columns, i)
		}
	}
	return s
}

// arguments appends the parameters of a row's statements to args.
func (s *shape) arguments(args []driver.NamedValue, k schema.RowKey, values []int64) []driver.NamedValue {
	for _, i := range s.columns {
		args = append(args, driver.NamedValue{Ordinal: len(args) + 1, Value: values[i]})
	}
	return append(args, driver.NamedValue{Ordinal: len(args) + 1, Value: k.Minute}, driver.NamedValue{Ordinal: len(args) + 2, Value: k.ID})
}

// forgetShapes forgets the statements on a table that is about to be dropped.
func (d *DB) forgetShapes(table string) {
	delete(d.shaped, table)
	for _, s := range d.shapes {
		delete(s.merges, table)
	}
}
