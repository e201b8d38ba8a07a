package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"mete.dev/mete/internal/model/fault"
)

// Backup writes the ledger as it is at one instant into a new file, as a ledger.
// Who writes and who reads goes on meanwhile. One in PostgreSQL is
// fault.ErrUnsupported: it has tools of its own. What was written when it fails is
// for the caller to remove.
func (db *DB) Backup(ctx context.Context, path string) error {
	if !db.IsSQLite() {
		return fault.WithHint(fmt.Errorf("ledger: a copy of PostgreSQL: %w", fault.ErrUnsupported), "copy it with pg_dump")
	}
	if err := db.backup(ctx, path); err != nil {
		if err = db.Fault(err); fault.Hint(err) != "" {
			err = fault.WithHint(err, "make room where the copy goes")
		}
		return fmt.Errorf("ledger: a copy in %s: %w", path, err)
	}
	return nil
}

func (db *DB) backup(ctx context.Context, path string) (err error) {
	var seq int
	var name, file string
	if err := db.Reader.QueryRowContext(ctx, "PRAGMA database_list").Scan(&seq, &name, &file); err != nil {
		return err
	}
	// A connection of its own: those that read may write nowhere.
	copier, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copier.Close()) }()
	// It holds hashes of tokens: nobody else reads it.
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
