package ledger

import "context"

// Reading calls f while a reader has its moment of the ledger; count counts the
// rows of a table in it.
func (l *Ledger) Reading(ctx context.Context, f func(count func(table string) (int64, error)) error) error {
	return l.view(ctx, func(v *view) error {
		return f(func(table string) (n int64, err error) {
			err = v.tx.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n)
			return n, l.d.fault(err)
		})
	})
}
