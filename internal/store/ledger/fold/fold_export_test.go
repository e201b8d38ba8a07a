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
