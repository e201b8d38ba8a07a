package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// kinds are the faults that callers tell apart.
var kinds = []error{schema.ErrRange, fault.ErrInvalid, fault.ErrUnavailable, fault.ErrNotFound, fault.ErrDenied}

// checkFault checks which of the kinds an error is.
func checkFault(t *testing.T, name string, err, inner error, hint bool, want ...error) {
	t.Helper()
	for _, k := range kinds {
		is := false
		for _, w := range want {
			is = is || errors.Is(w, k)
		}
		if errors.Is(err, k) != is {
			t.Errorf("%s: %v is %v: %t", name, err, k, !is)
		}
	}
	if err == nil || inner != nil && !errors.Is(err, inner) || (fault.Hint(err) != "") != hint {
		t.Errorf("%s: %v, hint %q; want %v within", name, err, fault.Hint(err), inner)
	}
}

// An error of PostgreSQL has the kind of its class: a refused value is the sender's fault, and a
// server or connection that fails is worth another try.
func TestPostgresFault(t *testing.T) {
	for code, want := range map[string]error{
		"22003": schema.ErrRange, "23514": schema.ErrRange,
		"08006": fault.ErrUnavailable, "40001": fault.ErrUnavailable, "53100": fault.ErrUnavailable, "55P03": fault.ErrUnavailable,
		"57P01": fault.ErrUnavailable, "58030": fault.ErrUnavailable, "42P01": nil, "21000": nil, "25006": nil,
	} {
		err := &pgconn.PgError{Code: code}
		got := postgresFault(fmt.Errorf("x: %w", err))
		if want == nil {
			checkFault(t, code, got, err, false)
		} else {
			checkFault(t, code, got, err, false, want)
		}
	}
	for name, err := range map[string]error{
		"connect": &pgconn.ConnectError{}, "network": &net.OpError{Op: "read", Err: unix.ECONNRESET}, "end": io.EOF, "early end": io.ErrUnexpectedEOF, "connection": driver.ErrBadConn,
	} {
		checkFault(t, name, postgresFault(err), nil, false, fault.ErrUnavailable)
	}
	for _, err := range []error{context.Canceled, sql.ErrNoRows} {
		if got := postgresFault(err); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if postgresFault(nil) != nil || sqliteFault(nil) != nil {
		t.Error("no error becomes one")
	}
	if isMissingTable(&pgconn.PgError{Code: "42703"}) || !isMissingTable(&pgconn.PgError{Code: "42P01"}) || isMissingTable(io.EOF) {
		t.Error("a missing table")
	}
}

// An error of SQLite has the kind of its code.
func TestSQLiteFault(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "x.db")
	open := func(options string) *sql.DB {
		t.Helper()
		d, err := sql.Open("sqlite", "file:"+file+options)
		if err != nil {
			t.Fatal(err)
		}
		d.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = d.Close() }) // only this test's
		return d
	}
	d := open("")
	exec := func(query string) error {
		_, err := d.ExecContext(ctx, query)
		return err
	}
	for _, query := range []string{"CREATE TABLE x (a INTEGER PRIMARY KEY, b) STRICT", "CREATE TABLE x (a INTEGER PRIMARY KEY, b ANY CHECK (b <> 7)) STRICT", "INSERT INTO x VALUES (1, 1)"} {
		_ = exec(query) // the first is wrong
	}
	for query, want := range map[string]error{
		"INSERT INTO x VALUES (1, 1)":                       schema.ErrRange, // unique
		"INSERT INTO x VALUES (2, 7)":                       schema.ErrRange, // check
		"INSERT INTO x VALUES ('a', 1)":                     schema.ErrRange, // mismatch
		"INSERT INTO x VALUES (3, zeroblob(2000000000))":    schema.ErrRange, // too big
		"SELECT nothing":                                    nil,
		"PRAGMA query_only = 1; INSERT INTO x VALUES (9,9)": fault.ErrUnavailable,
	} {
		err := exec(query)
		if want == nil {
			checkFault(t, query, sqliteFault(err), err, false)
		} else {
			checkFault(t, query, sqliteFault(fmt.Errorf("x: %w", err)), err, false, want)
		}
		if IsDamage(err) || isMissingTable(err) {
			t.Errorf("%s: %v is damage or a missing table", query, err)
		}
		_ = exec("PRAGMA query_only = 0")
	}
	if err := exec("SELECT * FROM y"); !isMissingTable(err) {
		t.Errorf("%v is not a missing table", err)
	}
	if err := exec("PRAGMA max_page_count = 2; INSERT INTO x VALUES (5, zeroblob(100000))"); err == nil {
		t.Error("the database is not full")
	} else {
		checkFault(t, "full", sqliteFault(err), err, true, fault.ErrUnavailable)
		checkFault(t, "full backup", backupFault(err), err, true, fault.ErrUnavailable)
		if hint := fault.Hint(backupFault(err)); hint == fault.Hint(sqliteFault(err)) {
			t.Errorf("the hint about a full backup is %q", hint)
		}
	}
	if err := exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if _, err := open("?_pragma=busy_timeout(0)").ExecContext(ctx, "INSERT INTO x VALUES (6, 6)"); err == nil {
		t.Error("the database is not busy")
	} else {
		checkFault(t, "busy", sqliteFault(err), err, false, fault.ErrUnavailable)
		checkFault(t, "busy backup", backupFault(err), err, false, fault.ErrUnavailable)
	}
	file = filepath.Join(t.TempDir(), "none", "x.db")
	_, err := open("").ExecContext(ctx, "SELECT 1 FROM sqlite_schema")
	checkFault(t, "cannot open", sqliteFault(err), err, false, fault.ErrUnavailable)
	file = filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, "%4096d", 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open("").ExecContext(ctx, "SELECT 1 FROM sqlite_schema"); !IsDamage(err) {
		t.Errorf("%v is not damage", err)
	} else {
		checkFault(t, "damage", sqliteFault(err), err, false)
	}
}

// An error of opening a file says what to do.
func TestFileFault(t *testing.T) {
	checkFault(t, "missing", fileFault(&fs.PathError{Err: fs.ErrNotExist}), fs.ErrNotExist, false, fault.ErrNotFound)
	checkFault(t, "below a file", fileFault(&fs.PathError{Err: unix.ENOTDIR}), unix.ENOTDIR, false, fault.ErrNotFound)
	checkFault(t, "denied", fileFault(&fs.PathError{Err: fs.ErrPermission}), fs.ErrPermission, true, fault.ErrDenied)
	checkFault(t, "other", fileFault(io.EOF), io.EOF, false)
}

// The size by the header of an SQLite file is its pages times their size.
func TestFileSizes(t *testing.T) {
	header := func(page, pages byte) []byte {
		b := make([]byte, 200)
		copy(b, "SQLite format 3\x00")
		b[16], b[17], b[31] = page>>1, page&1, pages
		return b
	}
	for name, c := range map[string]struct {
		content []byte
		want    int64
		ok      bool
	}{
		"512":         {header(4, 3), 3 * 512, true},
		"65536":       {header(1, 2), 2 * 65536, true},
		"header only": {header(4, 3)[:50], 3 * 512, true},
		"part of one": {header(4, 3)[:31], 0, false},
		"text":        {[]byte("no database at all"), 0, false},
		"empty":       {nil, 0, false},
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		have, want, err := fileSizes(path)
		if (err == nil) != c.ok || c.ok && have != int64(len(c.content)) || want != c.want || !c.ok && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %d of %d bytes, %v", name, have, want, err)
		}
	}
	if _, _, err := fileSizes(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a missing file: %v", err)
	}
}

// A dsn without a scheme is the path of a file.
func TestSQLitePath(t *testing.T) {
	for dsn, want := range map[string]string{"/a/b": "/a/b", "sqlite:/a/b": "/a/b", "/a/../b": "/b"} {
		if got, err := sqlitePath(dsn); got != want || err != nil || isPostgres(dsn) {
			t.Errorf("%s: %s, %v", dsn, got, err)
		}
	}
	for _, dsn := range []string{"", "sqlite:", "mysql://u:secret@h"} {
		if _, err := sqlitePath(dsn); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	if !isPostgres("postgres://h/d") || !isPostgres("postgresql://h/d") {
		t.Error("PostgreSQL")
	}
	if Wrap(nil, "x") != nil {
		t.Error("no error is wrapped")
	}
	if err := Wrap(io.EOF, "x %d", 1); err.Error() != "ledger: x 1: EOF" || !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A relative path is one of the current directory, if there is any.
func TestRelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if got, err := sqlitePath("x"); err != nil || got != filepath.Join(dir, "x") {
		t.Errorf("%s, %v; want x in %s", got, err, dir)
	}
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if got, err := sqlitePath("x"); !errors.Is(err, fs.ErrNotExist) || got != "" {
		t.Errorf("in a directory that was removed: %s, %v", got, err)
	}
}

// A database is frozen if its directory cannot be written, and nothing waits in its log.
func TestIsFrozen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.db")
	if hasLog(file) || isFrozen(file) {
		t.Error("a database without a log has one, or is frozen")
	}
	for n, want := range []bool{false, true} {
		if err := os.WriteFile(file+"-wal", make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		if hasLog(file) != want {
			t.Errorf("a log of %d bytes: %t", n, !want)
		}
	}
	if !hasLog(filepath.Join(file+"-wal", "x.db")) {
		t.Error("a log that cannot be looked at is none")
	}
	// No directory, so that no user can write to it.
	if !isFrozen(filepath.Join(dir, "none", "x.db")) {
		t.Error("a database in a directory that cannot be written is not frozen")
	}
}
