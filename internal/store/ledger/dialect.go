package ledger

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
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"modernc.org/sqlite"               // the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"mete.dev/mete/internal/model/fault"
)

// A dialect is what differs between the databases.
type dialect struct {
	name     string
	words    *strings.Replacer // for those in braces of the schema
	greatest string            // the function of two values
	// folds says that rows of any kind can be summed by a query. SQLite has
	// no aggregate for bits, and none that stays at the largest value, but takes
	// rows one after another where they conflict with one another.
	folds bool
	lock  string // what keeps other programs from migrating at the same time
	// reading begins a view, dropping the dropping of a table: a reader that
	// knows of a table finds it. SQLite's readers see what was there anyway.
	reading, dropping string
	view              sql.TxOptions
	size              string // asks for the bytes of the database
	fault             func(error) error
}

var lite = &dialect{
	name: "sqlite",
	words: strings.NewReplacer("{int}", "INTEGER", "{blob}", "BLOB", "{id}", "INTEGER PRIMARY KEY",
		"{strict}", "STRICT", "{keyed}", "STRICT, WITHOUT ROWID",
		"{group}", "minute, "+strings.Join(groupKeys, ", ")+", present, rough"),
	greatest: "max",
	view:     sql.TxOptions{ReadOnly: true},
	size:     "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
	fault:    liteFault,
}

var postgres = &dialect{
	name: "postgres",
	words: strings.NewReplacer("{int}", "bigint", "{blob}", "bytea", "{id}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"{strict}", "", "{keyed}", "",
		"{group}", "minute, "+hashed(groupKeys)+", present, rough"),
	greatest: "greatest",
	folds:    true,
	lock:     "SELECT pg_advisory_xact_lock(7308604897068083558)", // "mete ledg" as a number, of no meaning
	// LOCK takes no snapshot, so what is read is as it is once there is the lock.
	// A reader that is slow is not waited for, as others wait behind: days can be
	// dropped a minute later.
	reading:  "LOCK TABLE kept IN ACCESS SHARE MODE",
	dropping: "SET LOCAL lock_timeout = '300ms'; LOCK TABLE kept IN ACCESS EXCLUSIVE MODE",
	view:     sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead},
	size: `SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bigint) FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'`,
	fault: postgresFault,
}

// hashed is SQL for a hash of some columns of text, together: in an index, texts
// have less room than they may be long.
func hashed(columns []string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = "length(" + c + ")::text || ':' || " + c
	}
	return "md5(" + strings.Join(parts, " || ") + ")"
}

// errRange says that the database refused a value: an amount too large, a text
// that it cannot hold. It is the fault of one entry, not of the database.
var errRange = fmt.Errorf("out of range: %w", fault.ErrInvalid)

func liteFault(err error) error {
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
		return fmt.Errorf("%w: %w", errRange, err)
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
		return fmt.Errorf("%w: %w", errRange, err)
	case "08", "40", "53", "55", "57", "58": // connection, rollback, resources, state, operator, system
		return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	return err
}

// open opens the database that dsn names: one handle for writing and one for
// reading, which can give rows to readings.
func open(dsn string, s *readings) (d *dialect, writer, reader *sql.DB, err error) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		writer, err = sql.Open("pgx", dsn)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("ledger: %w: %w", err, fault.ErrInvalid)
		}
		writer.SetMaxIdleConns(8)
		writer.SetMaxOpenConns(16)
		return postgres, writer, writer, nil
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
	if reader, err = openReader(file+"&_pragma=query_only(1)", s); err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("ledger: %w", err), writer.Close())
	}
	// Nobody waits for one that helps, nor who has to know whom to trust for the
	// questions that run at once.
	reader.SetMaxOpenConns(8 + helping())
	reader.SetMaxIdleConns(4 + helping())
	return lite, writer, reader, nil
}
