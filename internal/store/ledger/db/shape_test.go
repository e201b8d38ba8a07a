package db

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Rows of workloads and nodes that are written by their shapes are those that a merge in memory gives, also where
// a value of a resource that is not present is not zero, and when there are too many shapes or tables.
func TestShapes(t *testing.T) {
	d := fresh(t)
	rapid.Check(t, func(rt *rapid.T) {
		d.write(t, func(tx *Tx) error {
			for table := range d.tables {
				if err := errors.Join(tx.DropTable(table), tx.DropTable("node_"+table)); err != nil {
					return err
				}
			}
			_, err := tx.Exec("DELETE FROM kept")
			return err
		})
		clear(d.shapes)
		want := map[string]schema.Pending{}
		for range rapid.IntRange(1, 8).Draw(rt, "transactions") {
			of := rapid.SampledFrom([]*schema.Layout{schema.UsageLayout, schema.NodeLayout}).Draw(rt, "layout")
			day := 1440 * rapid.Int64Range(1, maxShapedTables+2).Draw(rt, "day")
			table := of.MinuteTable(day)
			if want[table].Rows == nil {
				want[table] = schema.NewPending(of)
			}
			add := schema.NewPending(of)
			for range rapid.IntRange(1, 2*maxShapes).Draw(rt, "rows") {
				k := schema.RowKey{Minute: rapid.Int64Range(0, 9).Draw(rt, "minute"), ID: rapid.Int64Range(1, 3).Draw(rt, "id")}
				values := make([]int64, len(of.Columns))
				values[schema.ColPresent] = int64(usage.Set(rapid.Uint64().Draw(rt, "present")) & usage.All)
				values[schema.ColCovered] = 1
				for range rapid.IntRange(0, 5).Draw(rt, "amounts") {
					values[rapid.IntRange(schema.ColRest, len(values)-1).Draw(rt, "column")] = rapid.Int64Range(0, 9).Draw(rt, "amount")
				}
				for _, p := range []schema.Pending{add, want[table]} {
					if err := p.Add(k, slices.Clone(values)); err != nil {
						rt.Fatal(err)
					}
				}
			}
			d.write(t, func(tx *Tx) error {
				if err := tx.EnsureMinutes(day); err != nil {
					return err
				}
				return tx.Upsert(table, add)
			})
		}
		for table, p := range want {
			for k, values := range p.Rows {
				have := make([]int64, len(values))
				dest := make([]any, len(have))
				for i := range have {
					dest[i] = &have[i]
				}
				names := strings.Split(p.Layout.ColumnList(), ", ")[2:]
				if err := d.Reader.QueryRowContext(t.Context(), "SELECT "+strings.Join(names, ", ")+" FROM "+table+" WHERE minute = $1 AND "+p.Layout.Key+" = $2", k.Minute, k.ID).Scan(dest...); err != nil {
					rt.Fatal(err)
				}
				if !slices.Equal(have, values) {
					rt.Fatalf("%s, minute %d, id %d: %v, want %v", table, k.Minute, k.ID, have, values)
				}
			}
		}
		if len(d.shapes) > maxShapes+2 || len(d.shaped) > maxShapedTables {
			rt.Fatalf("%d shapes of %d tables", len(d.shapes), len(d.shaped))
		}
	})
}

// The statements of a dropped table are forgotten, so that another table may have shapes.
func TestShapesOfDroppedTable(t *testing.T) {
	d := fresh(t)
	values := make([]int64, len(schema.UsageLayout.Columns))
	for i := range maxShapedTables {
		d.shapeOf(fmt.Sprint("table", i), schema.UsageLayout, values)
	}
	if s := d.shapeOf("another", schema.UsageLayout, values); len(s.columns) != len(values) {
		t.Errorf("one table too many is written with %d columns", len(s.columns))
	}
	d.forgetShapes("table0")
	if s := d.shapeOf("table9", schema.UsageLayout, values); len(s.columns) != schema.ColRest {
		t.Errorf("a table after another was dropped is written with %d columns", len(s.columns))
	}
	if s := d.shapes[shapeKey{schema.UsageLayout, 0}]; s.merges["table0"] != (rowStatements{}) || s.merges["table1"] == (rowStatements{}) {
		t.Errorf("statements %v", s.merges)
	}
}
