package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"

	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/x/failpoint"
)

// A Tx is the one write transaction.
type Tx struct {
	DB  *DB
	Ctx context.Context // of the transaction; ends with the call of Write
	SQL *sql.Tx
	Rev int64 // revision of the rows that it writes
	schema.Marks
	versions int64 // how often versions of workloads changed
	// found are the workloads that this transaction created or looked up. Other transactions may
	// use them after the commit.
	found  map[workloadKey]Workload
	tables map[string]bool // tables of minutes, likewise
	// touched are the buckets of usage and nodes that it wrote to.
	touched map[schema.Bucket]bool
}

// Write calls f within a transaction, which it commits if f returns nil and rolls back otherwise.
func (db *DB) Write(ctx context.Context, f func(*Tx) error) error {
	select {
	case db.turn <- struct{}{}:
		defer func() { <-db.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if db.Dialect == schema.SQLite {
		// Writes are quick, and a cancelable context costs a goroutine per statement.
		ctx = context.WithoutCancel(ctx)
	}
	tx, err := db.beginWrite(ctx)
	if err != nil {
		return db.Fault(err)
	}
	// Also after a panic, which would leave the transaction open forever. Rollback does nothing after a
	// commit, and fails if the database has ended the transaction already.
	defer func() { _ = tx.Rollback() }()
	t := &Tx{DB: db, Ctx: ctx, SQL: tx, touched: map[schema.Bucket]bool{}}
	t.Forget()
	if err = t.begin(); err == nil && t.Rev <= db.rev {
		// The database was replaced by an older copy of itself.
		clear(db.workloads)
		clear(db.tables)
		err = t.newEpoch(t.Rev)
	}
	if err == nil {
		err = f(t)
	}
	if err == nil {
		failpoint.At("ledger.before-commit")
		// Readers may see the commit before Commit returns.
		db.observer.Committing(t.Rev, db.rev, t.touched)
		if err = db.Fault(tx.Commit()); err != nil {
			db.observer.CommitFailed(t.Rev)
		}
	}
	if err != nil {
		return err
	}
	failpoint.At("ledger.committed")
	t.publish()
	db.rev = t.Rev
	return nil
}

// beginWrite begins a transaction on the writer's connection.
func (db *DB) beginWrite(ctx context.Context) (*sql.Tx, error) {
	if db.Conn != nil {
		return db.Conn.BeginTx(ctx, nil)
	}
	return db.writer.BeginTx(ctx, nil)
}

// begin locks the counter and takes the next revision. Where another process added versions of workloads, those that
// are cached may lack them.
func (t *Tx) begin() error {
	err := t.QueryRow("UPDATE counter SET rev = rev + 1 WHERE id = 1 RETURNING rev, versions, " + schema.MarkColumns).
		Scan(append([]any{&t.Rev, &t.versions}, t.Targets()...)...)
	if err == nil && t.versions != t.DB.versions {
		clear(t.DB.workloads)
	}
	return err
}

// Forget drops cached lookups, since a rollback to a savepoint may undo them. It is not known then how often versions
// changed.
func (t *Tx) Forget() {
	t.found, t.tables, t.versions = map[workloadKey]Workload{}, map[string]bool{}, -1
}

// A runner runs queries.
type runner interface {
	Queryer
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// runner returns what runs a query: a prepared statement, unless the driver prepares statements
// itself. It belongs to the connection, so it runs within the connection's transaction.
func (t *Tx) runner(query string) (runner, error) {
	if t.DB.Conn == nil {
		return t.SQL, nil
	}
	s, err := prepareOnce(t.Ctx, t.DB.Conn, t.DB.prepared, query)
	return s, t.DB.Fault(err)
}

// prepareOnce returns the prepared statement of a query, which it keeps.
func prepareOnce(ctx context.Context, on interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}, kept map[string]*sql.Stmt, query string) (s Prepared, err error) {
	if s.Stmt = kept[query]; s.Stmt == nil {
		if s.Stmt, err = on.PrepareContext(ctx, query); err == nil {
			kept[query] = s.Stmt
		}
	}
	return s, err
}

// unprepare closes the statements on a table that is about to be dropped.
func (t *Tx) unprepare(table string) error {
	t.DB.forgetShapes(table)
	for query, s := range t.DB.prepared {
		if strings.Contains(query, table) {
			delete(t.DB.prepared, query)
			if err := s.Close(); err != nil {
				return t.DB.Fault(err)
			}
		}
	}
	for query, s := range t.DB.direct {
		if strings.Contains(query, table) {
			delete(t.DB.direct, query)
			if err := s.Close(); err != nil {
				return t.DB.Fault(err)
			}
		}
	}
	return nil
}

// direct calls f with the connection of the driver, for statements that run for each row: package sql makes a copy of
// all arguments of a call. f must not use the transaction. SQLite only.
func (t *Tx) direct(f func(directConn) error) error {
	return t.DB.Fault(t.DB.Conn.Raw(func(c any) error {
		return f(directConn{t.Ctx, c.(driver.ConnPrepareContext), t.DB.direct})
	}))
}

// A directConn is the writer's connection without package sql.
type directConn struct {
	ctx      context.Context
	on       driver.ConnPrepareContext
	prepared map[string]driver.Stmt
}

// exec runs a statement, which stays prepared, and returns how many rows it changed.
func (c directConn) exec(query string, args []driver.NamedValue) (int64, error) {
	s := c.prepared[query]
	if s == nil {
		var err error
		if s, err = c.on.PrepareContext(c.ctx, query); err != nil {
			return 0, err
		}
		c.prepared[query] = s
	}
	r, err := s.(driver.StmtExecContext).ExecContext(c.ctx, args)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Define runs a statement with placeholders of the schema files, unprepared.
func (t *Tx) Define(statement string) error {
	_, err := t.SQL.ExecContext(t.Ctx, t.DB.Expand(statement))
	return t.DB.Fault(err)
}

// Exec runs a statement and returns how many rows it changed.
func (t *Tx) Exec(query string, args ...any) (n int64, err error) {
	q, err := t.runner(query)
	if err != nil {
		return n, err
	}
	r, err := q.ExecContext(t.Ctx, query, args...)
	if err == nil {
		n, err = r.RowsAffected()
	}
	return n, t.DB.Fault(err)
}

// A Row is the result of QueryRow.
type Row struct {
	t   *Tx
	row *sql.Row
	err error
}

func (t *Tx) QueryRow(query string, args ...any) Row {
	q, err := t.runner(query)
	if err != nil {
		return Row{t, nil, err}
	}
	return Row{t, q.QueryRowContext(t.Ctx, query, args...), nil}
}

// Scan reads the row, or returns sql.ErrNoRows.
func (r Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	return r.t.DB.Fault(r.row.Scan(dest...))
}

// Each calls f for every row of the result. f must not use the transaction.
func (t *Tx) Each(f func(scan func(...any) error) error, query string, args ...any) error {
	q, err := t.runner(query)
	if err != nil {
		return err
	}
	return t.DB.Fault(Each(t.Ctx, q, f, query, args...))
}

// A Prepared runs a statement, whatever the query.
type Prepared struct{ *sql.Stmt }

func (p Prepared) ExecContext(ctx context.Context, _ string, args ...any) (sql.Result, error) {
	return p.Stmt.ExecContext(ctx, args...)
}

func (p Prepared) QueryRowContext(ctx context.Context, _ string, args ...any) *sql.Row {
	return p.Stmt.QueryRowContext(ctx, args...)
}

// QueryContext implements Queryer.
func (p Prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.Stmt.QueryContext(ctx, args...)
}

func (t *Tx) Ints(query string, args ...any) ([]int64, error) {
	all, err := Ints(t.Ctx, t.SQL, query, args...)
	return all, t.DB.Fault(err)
}
