package db

import (
	"context"
	"errors"
	"fmt"
	"os"

	"mete.dev/mete/internal/model/fault"
)

// Backup writes a consistent copy of the ledger into a new file at path. Reads and writes continue
// meanwhile. A ledger in PostgreSQL is fault.ErrUnsupported: it has its own tools. After an error
// the caller removes the file.
func (db *DB) Backup(ctx context.Context, path string) error {
	if !db.IsSQLite() {
		return fault.WithHint(fmt.Errorf("ledger: backup of PostgreSQL: %w", fault.ErrUnsupported), "copy it with pg_dump")
	}
	if err := db.backup(ctx, path); err != nil {
		return fmt.Errorf("ledger: backup to %s: %w", path, backupFault(err))
	}
	return nil
}

// backupFault adds the fault kind to an error of a backup. Space may be missing on the file system of
// the backup, and not on the ledger's.
func backupFault(err error) error {
	if err = sqliteFault(err); fault.Hint(err) != "" {
		err = fault.WithHint(err, "free space on the file system of the backup")
	}
	return err
}

func (db *DB) backup(ctx context.Context, path string) (err error) {
	var seq int
	var name, file string
	if err := db.Reader.QueryRowContext(ctx, "PRAGMA database_list").Scan(&seq, &name, &file); err != nil {
		return err
	}
	// VACUUM INTO needs a connection without query_only, which readers have.
	copier := openReading(file, "")
	defer func() { err = errors.Join(err, copier.Close()) }()
	// The copy holds hashes of tokens: only this user may read it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := copier.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return err
	}
	return f.Sync()
}
