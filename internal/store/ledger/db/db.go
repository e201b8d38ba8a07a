// Package db opens the database of a ledger and migrates its schema. A writer uses a [Tx], one at a
// time; a reader uses a [View], a snapshot.
package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A DB is an open ledger database. Readers have their own connections; writers take turns.
type DB struct {
	Dialect  *schema.Dialect
	writer   *sql.DB
	Reader   *sql.DB
	Conn     *sql.Conn // the writer's, SQLite only; its statements stay prepared
	epoch    string
	upstream bool      // index usage tables by rev
	sinks    *rowSinks // of reading connections
	observer Observer

	mu      sync.Mutex
	lookups map[string]*sql.Stmt // of readers, see lookup

	// turn is held by the writer. It guards the fields below.
	turn      chan struct{}
	workloads map[workloadKey]Workload
	maxCached int             // workloads
	versions  int64           // how often versions of workloads had changed then
	tables    map[string]bool // tables of minutes known to exist
	prepared  map[string]*sql.Stmt
	direct    map[string]driver.Stmt // prepared without package sql
	shapes    map[shapeKey]*shape    // of rows
	shaped    map[string]bool        // tables that use them
	rev       int64                  // of the last transaction of this process
}

// An Observer caches answers and is notified of writes.
type Observer interface {
	// Committing announces that transaction rev, which wrote to the touched buckets, is about to
	// commit. before is the revision of the process's previous transaction.
	Committing(rev, before int64, touched map[schema.Bucket]bool)
	// CommitFailed revokes the announcement of rev.
	CommitFailed(rev int64)
}

// unobserved ignores notifications.
type unobserved struct{}

func (unobserved) Committing(int64, int64, map[schema.Bucket]bool) {}
func (unobserved) CommitFailed(int64)                              {}

// Open opens the database at dsn and migrates its schema. upstream says that rows are replicated to
// an upstream server. Connections to SQLite go through wrap, if it is not nil.
func Open(ctx context.Context, dsn string, upstream bool, wrap Wrapper) (*DB, error) {
	sinks := &rowSinks{}
	d, writer, reader, err := openConnections(dsn, sinks, wrap)
	if err != nil {
		return nil, err
	}
	db := &DB{
		Dialect: d, writer: writer, Reader: reader, sinks: sinks, upstream: upstream,
		turn:      make(chan struct{}, 1),
		workloads: map[workloadKey]Workload{}, maxCached: maxCached, tables: map[string]bool{}, prepared: map[string]*sql.Stmt{}, direct: map[string]driver.Stmt{}, shapes: map[shapeKey]*shape{}, shaped: map[string]bool{}, lookups: map[string]*sql.Stmt{}, observer: unobserved{},
	}
	if d == schema.SQLite {
		if db.Conn, err = writer.Conn(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("ledger: %w", db.Fault(err)), db.Close())
		}
	}
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: %w", err), db.Close())
	}
	if db.epoch, err = db.Meta(ctx, metaEpoch); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Close closes the database. Call it once.
func (db *DB) Close() (err error) {
	// A connection that stays with its user does not close its statements.
	for _, s := range db.prepared {
		err = errors.Join(err, s.Close())
	}
	for _, s := range db.lookups {
		err = errors.Join(err, s.Close())
	}
	for _, s := range db.direct {
		err = errors.Join(err, s.Close())
	}
	if db.Conn != nil {
		err = errors.Join(err, db.Conn.Close())
	}
	// In PostgreSQL both are the same, and the second call does nothing.
	return errors.Join(err, db.writer.Close(), db.Reader.Close())
}

// Observe sets the observer of later writes. Call it before the first one.
func (db *DB) Observe(o Observer) { db.observer = o }

// IsSQLite reports whether the database is SQLite; else it is PostgreSQL.
func (db *DB) IsSQLite() bool { return db.Dialect == schema.SQLite }

// Expand replaces the placeholders in braces by the words of the dialect.
func (db *DB) Expand(statement string) string { return db.Dialect.Words.Replace(statement) }

// Epoch returns the random id that was created with the database. Row revisions are comparable only
// within one epoch.
func (db *DB) Epoch() string { return db.epoch }

// NotFound converts sql.ErrNoRows into fault.ErrNotFound, and other errors as Fault does.
func (db *DB) NotFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.ErrNotFound
	}
	return db.Fault(err)
}

// Meta returns a value that the server stored under key, or fault.ErrNotFound.
func (db *DB) Meta(ctx context.Context, key string) (value string, err error) {
	err = db.Reader.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = $1", key).Scan(&value)
	return value, Wrap(db.NotFound(err), "meta %q", key)
}

// Size returns the size of the database in bytes.
func (v *View) Size() (n int64, err error) {
	err = v.SQL.QueryRowContext(v.Ctx, v.DB.Dialect.SizeQuery).Scan(&n)
	return n, v.DB.Fault(err)
}
