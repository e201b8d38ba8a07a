package db

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// OpenReadOnly opens the database at dsn for views only, also while a server writes to it. It
// creates, migrates and changes nothing. Errors:
//
//   - fault.ErrNotFound: there is no such file
//   - fault.ErrInvalid: it is not a ledger
//   - fault.ErrUnsupported: a newer or an older program wrote it
//   - an error for which [IsDamage] holds: the file is damaged
func OpenReadOnly(ctx context.Context, dsn string) (*DB, error) {
	d, handle, file, err := openReadOnlyHandle(dsn)
	if err != nil {
		return nil, err
	}
	// A few connections, each with a small cache: SQLite sorts what exceeds the cache in files.
	handle.SetMaxOpenConns(2)
	db := &DB{Dialect: d, writer: handle, Reader: handle, observer: unobserved{}}
	if err := db.checkVersion(ctx); err != nil {
		if d == schema.SQLite {
			err = explainDamage(err, file)
		}
		return nil, errors.Join(fmt.Errorf("ledger: %w", err), db.Close())
	}
	return db, nil
}

// openReadOnlyHandle opens a handle that cannot write. file is the path of an SQLite file.
func openReadOnlyHandle(dsn string) (d *schema.Dialect, handle *sql.DB, file string, err error) {
	if isPostgres(dsn) {
		handle, err = openPostgres(dsn)
		return schema.PostgreSQL, handle, "", err
	}
	if file, err = sqlitePath(dsn); err != nil {
		return nil, nil, "", err
	}
	info, err := statFile(file)
	if err != nil {
		return nil, nil, "", fmt.Errorf("ledger: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, nil, "", fmt.Errorf("ledger: %s is not a file: %w", file, notALedger)
	case info.Size() == 0:
		return nil, nil, "", fmt.Errorf("ledger: %s is an empty file: %w", file, notALedger)
	}
	options := "&_pragma=query_only(1)&_pragma=cache_size(-16384)"
	if isFrozen(file) {
		options += "&immutable=1"
	}
	return schema.SQLite, openReading(file, options), file, nil
}

// statFile describes a file that can be opened.
func statFile(file string) (fs.FileInfo, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fileFault(err)
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close())
}

var notALedger = fault.WithHint(fmt.Errorf("it is not a ledger: %w", fault.ErrInvalid),
	"name a server's state directory, its ledger.db, or the address of its database in PostgreSQL")

// fileFault adds the fault kind to an error of opening a file.
func fileFault(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %w", err, fault.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrDenied), "run it as the user that runs the server, or as root")
	}
	return err
}

// isFrozen reports whether no process can write to a database: its directory is not writable, and nothing
// waits in a log beside it. SQLite otherwise creates files beside one that is in WAL mode.
func isFrozen(file string) bool {
	return unix.Access(filepath.Dir(file), unix.W_OK) != nil && !hasLog(file)
}

// hasLog reports whether something may wait in the log beside a database.
func hasLog(file string) bool {
	log, err := os.Stat(file + "-wal")
	return !errors.Is(err, fs.ErrNotExist) && (err != nil || log.Size() != 0)
}

// IsDamage reports whether an error says that an SQLite file is damaged.
func IsDamage(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_CORRUPT || e.Code()&0xff == sqlite3.SQLITE_NOTADB)
}

// explainDamage says of an error of a damaged file how much of the file is missing, if so.
func explainDamage(err error, file string) error {
	if !IsDamage(err) {
		return err
	}
	have, want, headerErr := fileSizes(file)
	switch {
	case headerErr != nil:
		return headerErr
	case have < want:
		err = fmt.Errorf("%s is cut off: it has %d of %d bytes: %w", file, have, want, err)
	default:
		err = fmt.Errorf("%s is damaged: %w", file, err)
	}
	return fault.WithHint(err, restoreHint)
}

// CheckFile reads the header of an SQLite file, and nothing else: it opens no database. The error wraps
// fault.ErrInvalid if the file is none of SQLite, or if it is shorter than its header says and whole
// says that no process writes to it.
func CheckFile(file string, whole bool) (size int64, err error) {
	have, want, err := fileSizes(file)
	switch {
	case err != nil:
		return have, err
	case whole && have < want:
		return have, fault.WithHint(fmt.Errorf("%s is cut off: it has %d of %d bytes: %w", file, have, want, fault.ErrInvalid), restoreHint)
	}
	return have, nil
}

// restoreHint says what to do about a damaged file.
const restoreHint = "restore the server's state from a backup; agents send again what they sent in the last 24 hours"

// fileSizes returns the size of an SQLite file in bytes, and the size by its header.
func fileSizes(file string) (have, want int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return have, want, fileFault(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return have, want, err
	}
	// The header is described in section 1.3 of SQLite's file format.
	var header struct {
		Magic [16]byte
		Page  uint16 // bytes; 1 is 65,536
		_     [10]byte
		Pages uint32
	}
	if err := binary.Read(f, binary.BigEndian, &header); err != nil || string(header.Magic[:]) != "SQLite format 3\x00" {
		return have, want, fmt.Errorf("%s: %w", file, notALedger)
	}
	page := int64(header.Page)
	if page == 1 {
		page += math.MaxUint16
	}
	return info.Size(), page * int64(header.Pages), nil
}

// checkVersion checks that this program knows each table and column, and that none is missing.
func (db *DB) checkVersion(ctx context.Context) error {
	var text string
	err := db.Reader.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = $1", metaSchema).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) || isMissingTable(err) {
		return notALedger
	}
	if err != nil {
		return db.Fault(err)
	}
	made, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("its schema has version %q: %w", text, notALedger)
	}
	switch {
	case made > SchemaVersion():
		return newerError(fmt.Sprintf("its schema has version %d, this program supports %d", made, SchemaVersion()))
	case made < SchemaVersion():
		return olderError(fmt.Sprintf("its schema has version %d, this program reads version %d", made, SchemaVersion()))
	}
	if db.epoch, err = db.Meta(ctx, metaEpoch); err != nil {
		return err
	}
	return db.View(ctx, func(v *View) error {
		if err := v.checkColumns("group_day", append([]string{"minute"}, schema.GroupKeys...), schema.GroupColumns()); err != nil {
			return err
		}
		for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
			for _, table := range []string{s.HourTable(), s.DayTable()} {
				if err := v.checkColumns(table, []string{"minute", s.Key}, s.Columns); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// checkColumns checks that a table has the columns that this program knows, and no others.
func (v *View) checkColumns(table string, keys []string, cols []schema.Column) error {
	have, err := columnsOf(v.Ctx, v.SQL, table)
	if err != nil {
		return v.DB.Fault(err)
	}
	known := slices.Clone(keys)
	for _, c := range cols {
		if known = append(known, c.Name); !slices.Contains(have, c.Name) {
			return olderError(fmt.Sprintf("table %s has no column %s", table, c.Name))
		}
	}
	for _, name := range have {
		if !slices.Contains(known, name) {
			return newerError(fmt.Sprintf("table %s has unknown column %s", table, name))
		}
	}
	return nil
}

func olderError(why string) error {
	return fault.WithHint(fmt.Errorf("%s: an older mete wrote it: %w", why, fault.ErrUnsupported),
		"start this version's server with it, which migrates it, or use the version that wrote it")
}

// isMissingTable reports whether an error says that a table does not exist.
func isMissingTable(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "42P01" // undefined_table, PostgreSQL's appendix A
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && strings.Contains(e.Error(), "no such table")
}

// SchemaVersion returns the number of migrations that the ledgers of this program have.
func SchemaVersion() int { return len(schema.Migrations) }

// Tables returns the tables of the database, sorted.
func (v *View) Tables() (names []string, err error) {
	err = Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	}, v.DB.Dialect.TablesQuery)
	return names, v.DB.Fault(err)
}

// A Reference is a column whose values are those of a column of another table.
type Reference struct{ Table, Column, To, ToColumn string }

// References returns the references that the database declares, sorted.
func (v *View) References() (list []Reference, err error) {
	err = Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var r Reference
		err := scan(&r.Table, &r.Column, &r.To, &r.ToColumn)
		list = append(list, r)
		return err
	}, v.DB.Dialect.ReferencesQuery)
	return list, v.DB.Fault(err)
}
