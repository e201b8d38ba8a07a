package fold

import (
	"context"

	"mete.dev/mete/internal/store/ledger/db"
)

// Reading calls use while a reader holds a snapshot; count counts the rows of a table in it.
func (f *Folder) Reading(ctx context.Context, use func(count func(table string) (int64, error)) error) error {
	return f.db.View(ctx, func(v *db.View) error {
		return use(func(table string) (n int64, err error) {
			err = v.SQL.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n)
			return n, f.db.Fault(err)
		})
	})
}

// RowBytes is how large a row of minutes is assumed to be.
const RowBytes = rowBytes

// MaxHold is how long folding is to hold the writer at most, and MinSlice the size of the first slices.
const (
	MaxHold  = maxHold
	MinSlice = minSlice
)

// Sizes returns how many rows the next transaction folds into hours, days and groups, and deletes.
func (f *Folder) Sizes() [4]int64 {
	return [4]int64{f.hourRows.Load(), f.dayRows.Load(), f.groupRows.Load(), f.deleteRows.Load()}
}

// Exec changes the database, in its turn.
func (f *Folder) Exec(ctx context.Context, statement string) error {
	return f.db.Write(ctx, func(t *db.Tx) error { return t.Define(statement) })
}
