package db_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestOpenReadOnly checks which files are refused, and that reading a ledger
// leaves its file as it is.
func TestOpenReadOnly(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	file := filepath.Join(dir, "ledger.db")
	l := ledgertest.Open(t, file)
	ledgertest.Node(t, l, "a")
	backup := filepath.Join(dir, "backup.db")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(l.Backup(ctx, backup))
	copied, err := os.ReadFile(backup)
	must(err)
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, content, 0o600))
		return path
	}
	sqlite := func(name string, statements ...string) string {
		path := write(name, copied)
		d, err := sql.Open("sqlite", path)
		must(err)
		for _, s := range statements {
			_, err := d.ExecContext(ctx, s)
			must(err)
		}
		must(d.Close())
		return path
	}
	damaged := slices.Clone(copied)
	for i := 100; i < 4096; i++ {
		damaged[i] = 0xa5
	}
	for _, c := range []struct {
		path string
		kind error
		want string
	}{
		{filepath.Join(dir, "none.db"), fault.ErrNotFound, "none.db: no such file"},
		{filepath.Join(dir, "none", "ledger.db"), fault.ErrNotFound, "no such file"},
		{filepath.Join(backup, "ledger.db"), fault.ErrNotFound, "not a directory"},
		{dir, fault.ErrInvalid, "is not a file: it is not a ledger"},
		{write("empty.db", nil), fault.ErrInvalid, "is an empty file: it is not a ledger"},
		{write("text.db", []byte(strings.Repeat("no database ", 1000))), fault.ErrInvalid, "text.db: it is not a ledger"},
		{write("cut.db", copied[:len(copied)/2]), nil, fmt.Sprintf("is cut off: it has %d of %d bytes", len(copied)/2, len(copied))},
		{write("head.db", copied[:50]), nil, "head.db is"},
		{write("damaged.db", damaged), nil, "damaged.db is damaged"},
		{sqlite("other.db", "DROP TABLE meta"), fault.ErrInvalid, "it is not a ledger"},
		{sqlite("unversioned.db", "DELETE FROM meta WHERE key = 'ledger.schema'"), fault.ErrInvalid, "it is not a ledger"},
		{sqlite("version.db", "UPDATE meta SET value = 'x' WHERE key = 'ledger.schema'"), fault.ErrInvalid, `its schema has version "x": it is not a ledger`},
		{sqlite("older.db", "UPDATE meta SET value = '7' WHERE key = 'ledger.schema'"), fault.ErrUnsupported, "its schema has version 7, this program reads version"},
		{sqlite("previous.db", "UPDATE meta SET value = CAST(value AS INTEGER) - 1 WHERE key = 'ledger.schema'"), fault.ErrUnsupported, "an older mete wrote it"},
		{sqlite("next.db", "UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'ledger.schema'"), fault.ErrUnsupported, "this program supports"},
		{sqlite("newer.db", "UPDATE meta SET value = '1000' WHERE key = 'ledger.schema'"), fault.ErrUnsupported, "its schema has version 1000, this program supports"},
		{sqlite("epoch.db", "DELETE FROM meta WHERE key = 'ledger.epoch'"), fault.ErrNotFound, "ledger.epoch"},
		{sqlite("column.db", "ALTER TABLE hour DROP COLUMN pressure_io"), fault.ErrUnsupported, "table hour has no column pressure_io: an older mete wrote it"},
		{sqlite("nodes.db", "ALTER TABLE node_day DROP COLUMN cpus"), fault.ErrUnsupported, "table node_day has no column cpus"},
		{sqlite("columns.db", "ALTER TABLE group_day ADD COLUMN gravity INTEGER"), fault.ErrUnsupported, "table group_day has unknown column gravity"},
		{sqlite("day.db", "ALTER TABLE day ADD COLUMN gravity INTEGER"), fault.ErrUnsupported, "table day has unknown column gravity"},
		{sqlite("table.db", "DROP TABLE node_hour"), nil, "node_hour"},
		{"mysql://u:secret@h/d", fault.ErrInvalid, `no database has the form "mysql://..."`},
	} {
		d, err := db.OpenReadOnly(ctx, c.path)
		if err == nil {
			must(d.Close())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, hint %q; want %q, %v", c.path, err, fault.Hint(err), c.want, c.kind)
		}
		if hint := fault.Hint(err) != ""; hint == (c.kind == fault.ErrNotFound) && c.want != "node_hour" {
			t.Errorf("%s: %v, hint %q", c.path, err, fault.Hint(err))
		}
	}

	d, err := db.OpenReadOnly(ctx, backup)
	must(err)
	if d.Epoch() != l.Epoch() || !d.IsSQLite() {
		t.Errorf("epoch %q, want %q", d.Epoch(), l.Epoch())
	}
	must(d.View(ctx, func(v *db.View) error {
		size, err := v.Size()
		if epoch, err2 := v.EpochOf(v.Rev); err != nil || err2 != nil || epoch == "" || size != int64(len(copied)) {
			t.Errorf("%d bytes, epoch %q: %v, %v", size, epoch, err, err2)
		}
		if epoch, err := v.EpochOf(-1); epoch != d.Epoch() || err != nil {
			t.Errorf("before all revisions: epoch %q, %v; want %q", epoch, err, d.Epoch())
		}
		return nil
	}))
	if _, err := d.Reader.ExecContext(ctx, "DELETE FROM meta"); !errors.Is(d.Fault(err), fault.ErrUnavailable) {
		t.Errorf("a write: %v", err)
	}
	must(d.Close())
	if now, err := os.ReadFile(backup); err != nil || !slices.Equal(now, copied) {
		t.Errorf("the file has changed, %v", err)
	}
	if names, err := filepath.Glob(backup + "?*"); err != nil || len(names) > 0 {
		t.Errorf("%v are left beside the file, %v", names, err)
	}
	if err := l.Backup(ctx, backup); err == nil {
		t.Error("a backup replaces a file")
	}
}

// TestReadOnlyConnections checks that reading takes few connections, each of which has a cache.
func TestReadOnlyConnections(t *testing.T) {
	file := ledgertest.SQLite(t)
	ledgertest.Open(t, file)
	d, err := db.OpenReadOnly(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.Reader.Stats().MaxOpenConnections; n != 2 {
		t.Errorf("%d connections at most, want 2", n)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
