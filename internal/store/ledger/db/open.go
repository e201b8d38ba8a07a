package db

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Fault adds the fault kind to an error of the database.
func (db *DB) Fault(err error) error {
	if db.IsSQLite() {
		return sqliteFault(err)
	}
	return postgresFault(err)
}

// viewOptions are those of a transaction that reads one snapshot. SQLite has no levels of isolation:
// each transaction reads one.
var viewOptions = &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead}

func sqliteFault(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	code := e.Code()
	switch code {
	case sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE:
		// The shared-memory file cannot grow, or a new page of it cannot be allocated.
		code = sqlite3.SQLITE_FULL
	}
	switch code & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return fmt.Errorf("%w: %w", schema.ErrRange, err)
	case sqlite3.SQLITE_FULL:
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnavailable), "free space on the file system of the ledger")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT:
		return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	return err
}

func postgresFault(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		_, connecting := errors.AsType[*pgconn.ConnectError](err)
		_, network := errors.AsType[net.Error](err)
		if connecting || network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) {
			return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
		}
		return err
	}
	// The classes are those of PostgreSQL's appendix A, error codes.
	switch e.Code[:2] {
	case "22", "23", "54": // data exception, integrity constraint, limits such as that of a row of an index
		return fmt.Errorf("%w: %w", schema.ErrRange, err)
	case "08", "40", "53", "55", "57", "58": // connection, rollback, resources, state, operator, system
		return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	return err
}

// openConnections opens the database at dsn: one handle for writing and one for reading, whose
// connections can pass rows to sinks. Connections to SQLite are made through wrap, if it is not nil.
func openConnections(dsn string, s *rowSinks, wrap Wrapper) (d *schema.Dialect, writer, reader *sql.DB, err error) {
	if isPostgres(dsn) {
		writer, err = openPostgres(dsn)
		return schema.PostgreSQL, writer, writer, err
	}
	path, err := sqlitePath(dsn)
	if err != nil {
		return nil, nil, nil, err
	}
	// The file holds hashes of tokens: only this user may read it. SQLite gives the files beside it
	// the same mode.
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = createFile(path)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("ledger: %w", err)
	}
	const common = "?_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)&_pragma=temp_store(memory)"
	file := fileURL(path) + common
	write := sqliteConnector{&sqlite.Driver{}, file + "&_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)" +
		"&_pragma=cache_size(-32768)&_pragma=wal_autocheckpoint(4000)&_pragma=journal_size_limit(67108864)"}
	writer, reader = openSQLite(write, wrap), openSQLite(s.connector(file+"&_pragma=query_only(1)"), wrap)
	// Reserve connections for scan helpers and for authentication so that neither waits behind
	// running queries.
	reader.SetMaxOpenConns(8 + MaxWorkers())
	reader.SetMaxIdleConns(4 + MaxWorkers())
	return schema.SQLite, writer, reader, nil
}

// createFile creates a file that only this user may read, unless it exists.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// postgresConns is the largest number of connections to PostgreSQL, whose own limit is 100 by default.
const postgresConns = 16

// openPostgres returns a handle for the database at dsn.
func openPostgres(dsn string) (*sql.DB, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("ledger: %w: %w", err, fault.ErrInvalid), "give the address as postgres://user@host/database")
	}
	handle := stdlib.OpenDB(*c)
	handle.SetMaxOpenConns(postgresConns)
	handle.SetMaxIdleConns(postgresConns) // a new connection costs more than an idle one
	return handle, nil
}

// fileURL returns the beginning of the address of an SQLite file.
func fileURL(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }

// openReading returns a handle that reads an SQLite file, with further options, and creates nothing.
func openReading(path, options string) *sql.DB {
	return sql.OpenDB(sqliteConnector{&sqlite.Driver{}, fileURL(path) + "?mode=ro&_pragma=busy_timeout(10000)" + options})
}

func isPostgres(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// sqlitePath returns the absolute path of an SQLite database.
func sqlitePath(dsn string) (string, error) {
	path := strings.TrimPrefix(dsn, "sqlite:")
	if kind, _, ok := strings.Cut(dsn, "://"); ok || path == "" {
		// The rest may hold a password.
		return "", fault.WithHint(fmt.Errorf("ledger: no database has the form %q: %w", kind+"://...", fault.ErrInvalid),
			"give the path of a file, or postgres://user@host/database")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("ledger: %w", err)
	}
	return path, nil
}

// MaxWorkers is the maximum number of concurrent scan helpers: one per core beyond the first, at
// most three.
func MaxWorkers() int { return min(runtime.GOMAXPROCS(0), 4) - 1 }
