package db

import (
	"context"
	"database/sql"
	"errors"
	"math"

	"mete.dev/mete/internal/store/ledger/schema"
)

// A View is a snapshot of the ledger for reading.
type View struct {
	DB  *DB
	Ctx context.Context
	SQL *sql.Tx
	Rev int64 // of the last transaction visible
	schema.Marks
	Days []int64 // first minutes of the days that have tables of minutes, sorted
}

// View calls f with a snapshot of the ledger.
func (db *DB) View(ctx context.Context, f func(*View) error) (err error) {
	tx, err := db.Reader.BeginTx(ctx, viewOptions)
	if err != nil {
		return db.Fault(err)
	}
	return db.viewIn(ctx, tx, f)
}

// ViewOn is View on a given reading connection.
func (db *DB) ViewOn(ctx context.Context, conn *sql.Conn, f func(*View) error) error {
	tx, err := conn.BeginTx(ctx, viewOptions)
	if err != nil {
		return err
	}
	return db.viewIn(ctx, tx, f)
}

// viewIn is View within tx, which it rolls back.
func (db *DB) viewIn(ctx context.Context, tx *sql.Tx, f func(*View) error) (err error) {
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	if db.Dialect.BeginView != "" {
		if _, err := tx.ExecContext(ctx, db.Dialect.BeginView); err != nil {
			return db.Fault(err)
		}
	}
	v := &View{DB: db, Ctx: ctx, SQL: tx}
	err = tx.QueryRowContext(ctx, "SELECT rev, "+schema.MarkColumns+" FROM counter WHERE id = 1").Scan(append([]any{&v.Rev}, v.Targets()...)...)
	if err != nil {
		return db.Fault(err)
	}
	if v.Days, err = Ints(ctx, tx, "SELECT day FROM kept WHERE day >= $1 ORDER BY day", v.MinuteFloor); err != nil {
		return db.Fault(err)
	}
	return f(v)
}

// A Queryer is a database or a transaction.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each calls f for every row of the result.
func Each(ctx context.Context, q Queryer, f func(scan func(...any) error) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = f(rows.Scan)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// Lookup is [Each] outside of a transaction, for a constant query that runs for each batch: SQLite
// parses it once for each connection. Its tables must not be ones that are dropped.
func (db *DB) Lookup(ctx context.Context, f func(scan func(...any) error) error, query string, args ...any) error {
	q, err := db.lookup(ctx, query)
	if err == nil {
		err = Each(ctx, q, f, query, args...)
	}
	return db.Fault(err)
}

// LookupRow is [DB.Lookup] for a query with one row, which it reads, or returns sql.ErrNoRows.
func (db *DB) LookupRow(ctx context.Context, dest []any, query string, args ...any) error {
	q, err := db.lookup(ctx, query)
	if err == nil {
		err = q.QueryRowContext(ctx, query, args...).Scan(dest...)
	}
	return db.Fault(err)
}

// lookup returns what runs the query of a lookup: a prepared statement of all readers, unless the
// driver prepares statements itself.
func (db *DB) lookup(ctx context.Context, query string) (runner, error) {
	if !db.IsSQLite() {
		return db.Reader, nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return prepareOnce(ctx, db.Reader, db.lookups, query)
}

// Ints returns a result of one integer column.
func Ints(ctx context.Context, q Queryer, query string, args ...any) (all []int64, err error) {
	err = Each(ctx, q, func(scan func(...any) error) error {
		var n int64
		err := scan(&n)
		all = append(all, n)
		return err
	}, query, args...)
	return all, err
}

// FirstMinute returns the earliest minute not before from in the tables, or math.MaxInt64.
func FirstMinute(ctx context.Context, q Queryer, from int64, tables ...string) (least int64, err error) {
	least = math.MaxInt64
	for _, table := range tables {
		found, err := Ints(ctx, q, "SELECT minute FROM "+table+" WHERE minute >= $1 ORDER BY minute LIMIT 1", from)
		if err != nil {
			return least, err
		}
		for _, m := range found {
			least = min(least, m)
		}
	}
	return least, nil
}
