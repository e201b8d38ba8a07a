// Package db opens the database of a ledger and brings its schema up to date. Those
// who write have a [Tx], one at a time, and those who read a [View] of one moment.
package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A DB is an open database of a ledger: those who read it have connections of their
// own, and those who write take turns.
type DB struct {
	Dialect  *schema.Dialect
	writer   *sql.DB
	Reader   *sql.DB
	Conn     *sql.Conn // the one that writes, of SQLite only; its statements stay prepared
	epoch    string
	upstream bool      // tables of usage are indexed by rev
	sinks    *rowSinks // of connections that read
	observer Observer

	// turn is held by the one who writes. It guards what is below.
	turn      chan struct{}
	workloads map[workloadKey]Workload
	tables    map[string]bool // of minutes, that are known to exist
	prepared  map[string]*sql.Stmt
	rev       int64 // of the last transaction here
}

// An Observer keeps answers in memory, and is told of what is written.
type Observer interface {
	// committing says which buckets a transaction of a revision wrote to that is
	// about to be committed; before is the revision of the one before it here.
	Committing(rev, before int64, touched map[schema.Bucket]bool)
	// failed takes back that a transaction would be committed.
	CommitFailed(rev int64)
}

// unobserved is who is told where nobody keeps answers in memory.
type unobserved struct{}

func (unobserved) Committing(int64, int64, map[schema.Bucket]bool) {}
func (unobserved) CommitFailed(int64)                              {}

// Open opens the database that dsn names, and brings its schema up to date. upstream
// says that rows are told to a server above.
func Open(ctx context.Context, dsn string, upstream bool) (*DB, error) {
	sinks := &rowSinks{}
	d, writer, reader, err := openConnections(dsn, sinks)
	if err != nil {
		return nil, err
	}
	db := &DB{
		Dialect: d, writer: writer, Reader: reader, sinks: sinks, upstream: upstream,
		turn:      make(chan struct{}, 1),
		workloads: map[workloadKey]Workload{}, tables: map[string]bool{}, prepared: map[string]*sql.Stmt{}, observer: unobserved{},
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

// Close closes the database. It is for the one who opened it, to be called once.
func (db *DB) Close() (err error) {
	for _, s := range db.prepared {
		err = errors.Join(err, s.Close())
	}
	if db.Conn != nil {
		err = errors.Join(err, db.Conn.Close())
	}
	err = errors.Join(err, db.writer.Close())
	if db.Reader != db.writer {
		err = errors.Join(err, db.Reader.Close())
	}
	return err
}

// Observe has an observer told of what is written from now on.
func (db *DB) Observe(o Observer) { db.observer = o }

// IsSQLite reports whether the database is SQLite; else it is PostgreSQL.
func (db *DB) IsSQLite() bool { return db.Dialect == schema.SQLite }

// Expand replaces the words in braces of a statement by those of the database.
func (db *DB) Expand(statement string) string { return db.Dialect.Words.Replace(statement) }

// Epoch is a random id that was made with the database. Revisions of rows are
// comparable within one epoch.
func (db *DB) Epoch() string { return db.epoch }

// NotFound turns the driver's words for an absent row into ours.
func (db *DB) NotFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.ErrNotFound
	}
	return db.Fault(err)
}

// Meta is a value of the server's own, by its key; fault.ErrNotFound where
// there is none.
func (db *DB) Meta(ctx context.Context, key string) (value string, err error) {
	err = db.Reader.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = $1", key).Scan(&value)
	return value, Wrap(db.NotFound(err), "meta %q", key)
}

// Size is how many bytes the database has.
func (v *View) Size() (n int64, err error) {
	err = v.SQL.QueryRowContext(v.Ctx, v.DB.Dialect.SizeQuery).Scan(&n)
	return n, v.DB.Fault(err)
}
