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

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"modernc.org/sqlite"               // the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Fault says of an error of the database which kind of ours it is.
func (db *DB) Fault(err error) error {
	if db.IsSQLite() {
		return sqliteFault(err)
	}
	return postgresFault(err)
}

// viewOptions are those of a transaction that is one moment of the database.
func (db *DB) viewOptions() *sql.TxOptions {
	if db.IsSQLite() {
		return &sql.TxOptions{ReadOnly: true}
	}
	return &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead}
}

func sqliteFault(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	code := e.Code()
	switch code {
	case sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE:
		// The file that its users share cannot be made larger, or has a page that
		// there is no room for when it is first touched.
		code = sqlite3.SQLITE_FULL
	}
	switch code & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return fmt.Errorf("%w: %w", schema.ErrRange, err)
	case sqlite3.SQLITE_FULL:
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnavailable), "make room on the file system of the ledger")
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
	case "22", "23": // data exception, integrity constraint
		return fmt.Errorf("%w: %w", schema.ErrRange, err)
	case "08", "40", "53", "55", "57", "58": // connection, rollback, resources, state, operator, system
		return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	return err
}

// openConnections opens the database that dsn names: one handle for writing and one for
// reading, which can give rows to readings.
func openConnections(dsn string, s *rowSinks) (d *schema.Dialect, writer, reader *sql.DB, err error) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		writer, err = sql.Open("pgx", dsn)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("ledger: %w: %w", err, fault.ErrInvalid)
		}
		writer.SetMaxIdleConns(8)
		writer.SetMaxOpenConns(16)
		return schema.PostgreSQL, writer, writer, nil
	}
	path, err := filepath.Abs(strings.TrimPrefix(dsn, "sqlite:"))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("ledger: %w", err)
	}
	if strings.Contains(dsn, "://") || strings.TrimPrefix(dsn, "sqlite:") == "" {
		return nil, nil, nil, fault.WithHint(fmt.Errorf("ledger: %q names no database: %w", dsn, fault.ErrInvalid),
			"give the path of a file, or postgres://user@host/database")
	}
	// It holds hashes of tokens: nobody else reads it. The files beside it get
	// its mode.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, nil, fmt.Errorf("ledger: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("ledger: %w", err)
	}
	const common = "?_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)&_pragma=temp_store(memory)"
	file := "file:" + (&url.URL{Path: path}).EscapedPath() + common
	if writer, err = sql.Open("sqlite", file+"&_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)"+
		"&_pragma=cache_size(-32768)&_pragma=wal_autocheckpoint(4000)&_pragma=journal_size_limit(67108864)"); err != nil {
		return nil, nil, nil, fmt.Errorf("ledger: %w", err)
	}
	writer.SetMaxOpenConns(1)
	if reader, err = openSQLiteReader(file+"&_pragma=query_only(1)", s); err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("ledger: %w", err), writer.Close())
	}
	// Nobody waits for one that helps, nor who has to know whom to trust for the
	// questions that run at once.
	reader.SetMaxOpenConns(8 + MaxWorkers())
	reader.SetMaxIdleConns(4 + MaxWorkers())
	return schema.SQLite, writer, reader, nil
}

// MaxWorkers is how many may help others at a time: one for each core beside the
// first, but not more than three.
func MaxWorkers() int { return min(runtime.GOMAXPROCS(0), 4) - 1 }
