package db_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// open opens a database until the test ends. Before, it does so with faults.
func open(t *testing.T, dsn string) *db.DB {
	t.Helper()
	d := openWith(t, dsn, false)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func openWith(t *testing.T, dsn string, upstream bool) (d *db.DB) {
	t.Helper()
	err := ledgertest.Try(t, func() (err error) {
		if d, err = db.Open(t.Context(), dsn, upstream, ledgertest.Wrap); err != nil && d != nil {
			t.Errorf("a database with the error %v", err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// write writes, with faults before.
func write(t *testing.T, d *db.DB, f func(*db.Tx) error) {
	t.Helper()
	if err := ledgertest.Try(t, func() error { return d.Write(t.Context(), f) }); err != nil {
		t.Fatal(err)
	}
}

// view reads, with faults before.
func view(t *testing.T, d *db.DB, f func(*db.View) error) {
	t.Helper()
	if err := ledgertest.Try(t, func() error { return d.View(t.Context(), f) }); err != nil {
		t.Fatal(err)
	}
}

// openFiles returns how many files below a directory this process has open.
func openFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

// The file of a ledger, its directory and its backup are for this user only. A closed ledger has no
// file open.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	file := filepath.Join(dir, "l.db")
	for range 2 {
		d := openWith(t, "sqlite:"+file, false)
		view(t, d, func(*db.View) error { return nil })
		backup := filepath.Join(t.TempDir(), "backup")
		if err := d.Backup(t.Context(), backup); err != nil {
			t.Error(err)
		}
		if n := openFiles(t, filepath.Dir(backup)); n > 0 {
			t.Errorf("%d files are open after a backup", n)
		}
		for path, want := range map[string]fs.FileMode{dir: 0o700, file: 0o600, backup: 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, want mode %v", path, info.Mode(), want)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if r, err := db.OpenReadOnly(t.Context(), file); err != nil {
			t.Error(err)
		} else if err := r.Close(); err != nil {
			t.Error(err)
		}
		if size, err := db.CheckFile(file, true); err != nil || size == 0 {
			t.Errorf("%d bytes, %v", size, err)
		}
		if n := openFiles(t, dir); n > 0 {
			t.Errorf("%d files of a closed ledger are open", n)
		}
	}
	for _, path := range []string{filepath.Join(file, "x.db"), filepath.Join(file, "below", "x.db")} {
		if d, err := db.Open(t.Context(), path, false, nil); d != nil || err == nil || !strings.HasPrefix(err.Error(), "ledger: mkdir ") {
			t.Errorf("%s: %v, want that the directory cannot be made", path, err)
		}
	}
	if d, err := db.Open(t.Context(), dir, false, nil); d != nil || err == nil || !strings.HasPrefix(err.Error(), "ledger: open ") {
		t.Errorf("a directory: %v", err)
	}
	if d, err := db.Open(t.Context(), "mysql://h/d", false, nil); d != nil || !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("MySQL: %v", err)
	}
}

// A backup fails if the ledger cannot be read, or if there is a file already.
func TestBackupFails(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	d := open(t, dsn)
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Backup(t.Context(), there); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if b, err := os.ReadFile(there); string(b) != "x" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if err := os.Rename(dsn, dsn+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := d.Backup(t.Context(), filepath.Join(t.TempDir(), "new")); !errors.Is(err, fault.ErrUnavailable) || !strings.HasPrefix(err.Error(), "ledger: backup to ") {
		t.Errorf("of a ledger that is gone: %v", err)
	}
}

// An address that is none is refused at once, and the error does not tell its password.
func TestPostgresAddress(t *testing.T) {
	dsn := "postgres://u:SECRET@h:port/d"
	_, err := db.Open(t.Context(), dsn, false, nil)
	_, err2 := db.OpenReadOnly(t.Context(), dsn)
	for _, err := range []error{err, err2} {
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%v, hint %q", err, fault.Hint(err))
		}
	}
}

// CheckFile looks at nothing but the header of a file.
func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	d := openWith(t, filepath.Join(dir, "l.db"), false)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "l.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		whole   bool
		kind    error
		want    string
	}{
		"whole":      {content, true, nil, ""},
		"longer":     {append(slices.Clone(content), 0), true, nil, ""},
		"written":    {content[:len(content)-1], false, nil, ""},
		"cut":        {content[:len(content)-1], true, fault.ErrInvalid, fmt.Sprintf("cut is cut off: it has %d of %d bytes", len(content)-1, len(content))},
		"text":       {[]byte("text that is not a database of SQLite"), false, fault.ErrInvalid, "text: it is not a ledger"},
		"empty":      {[]byte{}, true, fault.ErrInvalid, "empty: it is not a ledger"},
		"none":       {nil, true, fault.ErrNotFound, "none: no such file"},
		"l.db/below": {nil, false, fault.ErrNotFound, "not a directory"},
	} {
		path := filepath.Join(dir, name)
		if c.content != nil {
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		size, err := db.CheckFile(path, c.whole)
		switch {
		case c.kind == nil:
			if err != nil || size != int64(len(c.content)) {
				t.Errorf("%s: %d of %d bytes, %v", name, size, len(c.content), err)
			}
		case !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) || (fault.Hint(err) != "") != (c.kind == fault.ErrInvalid):
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
	}
	if n := openFiles(t, dir); n > 0 {
		t.Errorf("%d files are open", n)
	}
}

// OpenReadOnly sees what waits in the log of a server that is running, and fails if the context ends.
func TestReadOnlyWhileRunning(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	d := open(t, dsn)
	write(t, d, func(tx *db.Tx) error { return tx.SetMeta("k", "v") })
	r, err := db.OpenReadOnly(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if v, err := r.Meta(t.Context(), "k"); v != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if n := r.Reader.Stats().MaxOpenConnections; n < 1 || n > 4 {
		t.Errorf("at most %d connections, want a few", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := db.OpenReadOnly(ctx, dsn); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// A value that was never stored is not found.
func TestMeta(t *testing.T) { testMeta(t, ledgertest.SQLite(t)) }

func TestMetaPostgreSQL(t *testing.T) { testMeta(t, ledgertest.PostgreSQL(t)) }

func testMeta(t *testing.T, dsn string) {
	d := open(t, dsn)
	if v, err := d.Meta(t.Context(), "k"); v != "" || !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), `ledger: meta "k"`) {
		t.Errorf("%q, %v", v, err)
	}
	for _, want := range []string{"v", "w"} {
		write(t, d, func(tx *db.Tx) error { return tx.SetMeta("k", want) })
		if v, err := d.Meta(t.Context(), "k"); v != want || err != nil {
			t.Errorf("%q, %v; want %s", v, err, want)
		}
	}
	epoch := d.Epoch()
	if v, err := d.Meta(t.Context(), "ledger.epoch"); v != epoch || epoch == "" || err != nil {
		t.Errorf("epoch %q, %v; want %q", v, err, epoch)
	}
	if v, err := d.Meta(t.Context(), "ledger.schema"); v != fmt.Sprint(db.SchemaVersion()) || err != nil {
		t.Errorf("schema %q, %v", v, err)
	}
	// A second process has the same epoch, and a later program is refused.
	second := openWith(t, dsn, false)
	if second.Epoch() != epoch {
		t.Errorf("epoch %q, want %q", second.Epoch(), epoch)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	write(t, d, func(tx *db.Tx) error { return tx.SetMeta("ledger.schema", fmt.Sprint(db.SchemaVersion()+1)) })
	if later, err := db.Open(t.Context(), dsn, false, nil); later != nil || !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
		t.Errorf("of a later program: %v, hint %q", err, fault.Hint(err))
	}
	if err := d.NotFound(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Opening a ledger adds the columns that are missing, and refuses one with a column that it does not
// know.
func TestColumns(t *testing.T) { testColumns(t, ledgertest.SQLite(t)) }

func TestColumnsPostgreSQL(t *testing.T) { testColumns(t, ledgertest.PostgreSQL(t)) }

func testColumns(t *testing.T, dsn string) {
	d := openWith(t, dsn, false)
	day := int64(29_000_160)
	write(t, d, func(tx *db.Tx) error { return tx.EnsureMinutes(day) })
	tables := []string{"hour", "day", "node_hour", "node_day", schema.UsageMinuteTable(day), schema.NodeMinuteTable(day)}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	raw := ledgertest.DB(t, dsn)
	exec := func(query string) {
		t.Helper()
		if _, err := raw.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range tables {
		exec("ALTER TABLE " + table + " DROP COLUMN cpu")
	}
	exec("ALTER TABLE group_day DROP COLUMN cpu_lo")
	d = openWith(t, dsn, false)
	for _, table := range tables {
		var key string
		if key = "workload"; strings.HasPrefix(table, "node_") {
			key = "node"
		}
		exec("INSERT INTO " + table + " (minute, " + key + ", cpu) VALUES (1, 1, 5)")
		if _, err := raw.ExecContext(t.Context(), "INSERT INTO "+table+" (minute, "+key+", cpu) VALUES (1, 2, -5)"); err == nil {
			t.Errorf("table %s takes a negative amount", table)
		}
		_, err := raw.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %s (minute, %s, cpu) VALUES (1, 3, %d)", table, key, schema.MaxMinuteAmount+1))
		if isMinutes := strings.Contains(table, "minute"); (err != nil) != isMinutes {
			t.Errorf("table %s and an amount too large for a minute: %v", table, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, table := range append(tables, "group_day") {
		exec("ALTER TABLE " + table + " ADD COLUMN gravity integer")
		if d, err := db.Open(t.Context(), dsn, false, nil); d != nil || !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "table "+table+" has unknown column gravity") {
			t.Errorf("table %s: %v", table, err)
		}
		exec("ALTER TABLE " + table + " DROP COLUMN gravity")
	}
	d = openWith(t, dsn, false)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A ledger of before resources past 31 gets the second column for their quality, also in the key of
// groups, and keeps its groups.
func TestRoughHigh(t *testing.T) { testRoughHigh(t, ledgertest.SQLite(t)) }

func TestRoughHighPostgreSQL(t *testing.T) { testRoughHigh(t, ledgertest.PostgreSQL(t)) }

func testRoughHigh(t *testing.T, dsn string) {
	d := openWith(t, dsn, false)
	key := strings.TrimSuffix(d.Expand("{group}"), ", rough_high")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	raw := ledgertest.DB(t, dsn)
	exec := func(query string) error {
		_, err := raw.ExecContext(t.Context(), query)
		return err
	}
	columns := "INSERT INTO group_day (minute, " + strings.Join(schema.GroupKeys, ", ") + ", present, rough"
	values := ") VALUES (1440" + strings.Repeat(", 'x'", len(schema.GroupKeys)) + ", 2, 0"
	ledgertest.UndoMigrations(t, raw, 18)
	for _, step := range []string{
		"DROP INDEX group_day_key", "ALTER TABLE group_day DROP COLUMN rough_high", "ALTER TABLE hour DROP COLUMN rough_high",
		"CREATE UNIQUE INDEX group_day_key ON group_day (" + key + ")", columns + values + ")", "INSERT INTO hour (minute, workload, present) VALUES (60, 1, 2)",
	} {
		if err := exec(step); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	d = openWith(t, dsn, false)
	for high, fails := range []bool{0: true, 1: false} { // the existing group has 0
		if err := exec(fmt.Sprintf("%s, rough_high%s, %d)", columns, values, high)); (err != nil) != fails {
			t.Errorf("a group with rough_high %d: %v", high, err)
		}
	}
	view(t, d, func(v *db.View) error {
		var n, high int64
		err := v.SQL.QueryRow("SELECT count(*), sum(h.rough_high) FROM group_day g JOIN hour h ON h.present = g.present").Scan(&n, &high)
		if err == nil && (n != 2 || high != 0) {
			t.Errorf("%d groups, with %d", n, high)
		}
		return err
	})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// Tables of usage have an index of revisions if, and only if, an upstream server needs it.
func TestIndexes(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	for i, upstream := range []bool{false, true, true, false} {
		d := openWith(t, dsn, upstream)
		write(t, d, func(tx *db.Tx) error { return tx.EnsureMinutes(1440 * int64(i%3)) })
		want := map[bool]int{true: 4 + 2*min(i+1, 3)}[upstream]
		view(t, d, func(v *db.View) error {
			var n int
			err := v.SQL.QueryRow("SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND (name LIKE '%hour_rev' OR name LIKE '%day_rev' OR name LIKE '%minute!_%!_rev' ESCAPE '!') AND tbl_name <> 'within_day'").Scan(&n)
			if n != want {
				t.Errorf("opened %d times, the last with an upstream server %t: %d indexes, want %d", i+1, upstream, n, want)
			}
			return err
		})
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An observer of a test notes its calls.
type observer struct{ told []string }

func (o *observer) Committing(rev, before int64, touched map[schema.Bucket]bool) {
	var buckets []string
	for b := range touched {
		buckets = append(buckets, fmt.Sprintf("%s %d", b.Level.Name(), b.Start))
	}
	slices.Sort(buckets)
	o.told = append(o.told, fmt.Sprint("committing ", rev, " after ", before, buckets))
}

func (o *observer) CommitFailed(rev int64) { o.told = append(o.told, fmt.Sprint("failed ", rev)) }

// A write that fails changes nothing. One that succeeds has the next revision, and the observer knows of
// it before it is committed.
func TestWrite(t *testing.T) { testWrite(t, ledgertest.SQLite(t)) }

func TestWritePostgreSQL(t *testing.T) { testWrite(t, ledgertest.PostgreSQL(t)) }

func testWrite(t *testing.T, dsn string) {
	ctx := t.Context()
	d := open(t, dsn)
	var o observer
	d.Observe(&o)
	var rev int64
	if err := d.Write(ctx, func(tx *db.Tx) error { rev = tx.Rev; return tx.SetMeta("k", "first") }); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if err := d.Write(ctx, func(tx *db.Tx) error { return errors.Join(tx.SetMeta("k", "second"), stop) }); !errors.Is(err, stop) {
		t.Errorf("a write that fails: %v", err)
	}
	if v, err := d.Meta(ctx, "k"); v != "first" || err != nil {
		t.Errorf("after a failure %q, %v", v, err)
	}
	err := d.Write(ctx, func(tx *db.Tx) error {
		if tx.Rev != rev+1 {
			t.Errorf("revision %d after %d", tx.Rev, rev)
		}
		p, hours := schema.NewPending(schema.UsageLayout), schema.NewPending(schema.UsageLayout)
		for _, k := range []schema.RowKey{{Minute: 1500, ID: 1}, {Minute: 1500, ID: 2}, {Minute: 1501, ID: 1}} {
			p.Rows[k], hours.Rows[schema.RowKey{Minute: 1440, ID: k.ID}] = row(1, 5), row(1, 5)
		}
		return errors.Join(tx.EnsureMinutes(1440), tx.Upsert("minute_19700102", p), tx.Upsert("hour", hours), tx.Upsert("day", schema.NewPending(schema.UsageLayout)))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprint("committing ", rev, " after 0 []"), fmt.Sprint("committing ", rev+1, " after ", rev, " [hour 1440 hour 1500 hour 1501]")}
	if !slices.Equal(o.told, want) {
		t.Errorf("the observer got %q, want %q", o.told, want)
	}
}

// The observer learns that a commit failed, and the next write succeeds.
func TestCommitFails(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	var o observer
	d.Observe(&o)
	var rev int64
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		rev = tx.Rev
		if err := tx.Define("PRAGMA defer_foreign_keys = 1"); err != nil {
			return err
		}
		_, err := tx.Workload(99, 1) // no such node
		return err
	})
	if err == nil {
		t.Error("a workload of no node was committed")
	}
	err = d.Write(t.Context(), func(tx *db.Tx) error {
		if tx.Rev != rev {
			t.Errorf("revision %d after a failed one, want %d", tx.Rev, rev)
		}
		return tx.SetMeta("k", "v")
	})
	want := []string{fmt.Sprint("committing ", rev, " after 0 []"), fmt.Sprint("failed ", rev), fmt.Sprint("committing ", rev, " after 0 []")}
	if err != nil || !slices.Equal(o.told, want) {
		t.Errorf("%v, the observer got %q, want %q", err, o.told, want)
	}
}

// row returns a row of usage.
func row(present, cpu int64) []int64 {
	v := make([]int64, len(schema.UsageLayout.Columns))
	v[schema.ColPresent], v[schema.ColRest] = present, cpu
	return v
}

// Each step of a write may fail.
func TestWriteFaults(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	write(t, d, func(tx *db.Tx) error {
		n, err := tx.Exec("INSERT INTO meta (key, value) VALUES ('a', 'x'), ('b', 'y')")
		if n != map[bool]int64{true: 2}[err == nil] {
			t.Errorf("%d rows were added, %v", n, err)
		}
		if err != nil {
			return err
		}
		var all int64
		if err := tx.QueryRow("SELECT count(*) FROM meta WHERE key < $1", "c").Scan(&all); err != nil {
			return err
		} else if all != 2 {
			t.Errorf("%d rows", all)
		}
		if err := tx.QueryRow("SELECT value FROM meta WHERE key = $1", "c").Scan(new(string)); !errors.Is(err, sql.ErrNoRows) && !errors.Is(err, ledgertest.ErrFault) {
			t.Errorf("a row that does not exist: %v", err)
		} else if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var found []int64
		err = tx.Each(func(scan func(...any) error) error {
			var n int64
			err := scan(&n)
			found = append(found, n)
			return err
		}, "SELECT length(key) + $1 FROM meta WHERE key < 'c' ORDER BY key", 7)
		if err != nil {
			return err
		} else if !slices.Equal(found, []int64{8, 8}) {
			t.Errorf("each row: %v", found)
		}
		list, err := tx.Ints("SELECT length(key) FROM meta WHERE key < $1 UNION ALL SELECT 9 ORDER BY 1", "c")
		if err != nil {
			return err
		} else if !slices.Equal(list, []int64{1, 1, 9}) {
			t.Errorf("integers: %v", list)
		}
		if err := tx.Define("CREATE TABLE x (a {int}) {strict}"); err != nil {
			return err
		}
		if err := tx.EnsureMinutes(0); err != nil {
			return err
		}
		p := schema.NewPending(schema.UsageLayout)
		p.Rows[schema.RowKey{Minute: 1, ID: 2}] = row(1, 3)
		if err := errors.Join(tx.Upsert("minute_19700101", p)); err != nil {
			return err
		}
		if err := tx.MarkStale(1440); err != nil {
			return err
		}
		if err := tx.LockDays(); err != nil {
			return err
		}
		return tx.Audit(registry.Audit{At: time.Unix(1, 0), Actor: "a\x00", Action: "b\x00", Object: "c\x00", Detail: "d\x00"})
	})
	view(t, d, func(v *db.View) error {
		var text string
		err := v.SQL.QueryRow("SELECT actor || action || object || detail || at_ns FROM audit").Scan(&text)
		if err == nil && text != "abcd1000000000" {
			t.Errorf("audit %q", text)
		}
		return err
	})
	view(t, d, func(v *db.View) error {
		var sum int64
		err := v.SQL.QueryRow("SELECT sum(minute * 100 + workload * 10 + cpu) FROM minute_19700101").Scan(&sum)
		if sum != 123 && err == nil {
			t.Errorf("the row adds up to %d", sum)
		}
		return err
	})
}

// A fault within each row of a result ends it, and so does an error of the caller.
func TestEachFails(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	stop := errors.New("stop")
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		n := 0
		err := tx.Each(func(func(...any) error) error { n++; return stop }, "SELECT 1 UNION SELECT 2")
		if n != 1 {
			t.Errorf("%d rows after an error", n)
		}
		return err
	})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
	err = d.View(t.Context(), func(v *db.View) error {
		// The second row is not a number.
		list, err := db.Ints(v.Ctx, v.SQL, "SELECT 1 UNION ALL SELECT 'x' UNION ALL SELECT 3")
		if err == nil {
			t.Errorf("a text is an integer: %v", list)
		}
		first, err := db.FirstMinute(v.Ctx, v.SQL, 0, "nothing")
		if err == nil {
			t.Errorf("the first minute of no table is %d", first)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
}

// The first minute is the earliest of all tables.
func TestFirstMinute(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	write(t, d, func(tx *db.Tx) error {
		for table, minutes := range map[string][]int64{"hour": {120, 60, 600}, "day": {1440, 0}} {
			p := schema.NewPending(schema.UsageLayout)
			for _, m := range minutes {
				p.Rows[schema.RowKey{Minute: m, ID: 1}] = row(1, 1)
			}
			if err := tx.Upsert(table, p); err != nil {
				return err
			}
		}
		return nil
	})
	view(t, d, func(v *db.View) error {
		for from, want := range map[int64]int64{0: 0, 1: 60, 60: 60, 61: 120, 121: 600, 601: 1440, 1441: math.MaxInt64} {
			got, err := db.FirstMinute(v.Ctx, v.SQL, from, "hour", "day")
			if err != nil {
				return err
			}
			back, err := db.FirstMinute(v.Ctx, v.SQL, from, "day", "hour")
			if err != nil {
				return err
			}
			if got != want || back != want {
				t.Errorf("from %d: %d and %d, want %d", from, got, back, want)
			}
		}
		return nil
	})
}

// Writers take turns. A writer that waits can give up, and one that writes to SQLite finishes.
func TestTurns(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := d.Write(ctx, func(tx *db.Tx) error {
		cancel(gone)
		if err := d.Write(ctx, func(*db.Tx) error { t.Error("two writers"); return nil }); err != gone {
			t.Errorf("a writer that waits has the error %v", err)
		}
		return tx.SetMeta("k", "v")
	})
	if err != nil {
		t.Error(err)
	}
	if v, err := d.Meta(t.Context(), "k"); v != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// A view is a snapshot, with the marks and the days that are kept, and leaves no connection behind.
func TestView(t *testing.T) { testView(t, ledgertest.SQLite(t)) }

func TestViewPostgreSQL(t *testing.T) { testView(t, ledgertest.PostgreSQL(t)) }

func testView(t *testing.T, dsn string) {
	ctx := t.Context()
	d := open(t, dsn)
	var rev int64
	write(t, d, func(tx *db.Tx) error {
		rev = tx.Rev
		for _, day := range []int64{2880, 0, 4320, 1440} {
			if err := tx.EnsureMinutes(day); err != nil {
				return err
			}
		}
		return tx.Define("UPDATE counter SET hour_mark = 1, day_mark = 2, minute_floor = 1440, hour_floor = 4, hour_workload = 5, hour_node = 6, day_workload = 7, day_node = 8")
	})
	read := func(v *db.View) error {
		if v.Rev != rev || !slices.Equal(v.Days, []int64{1440, 2880, 4320}) ||
			v.Marks != (schema.Marks{Hour: 1, Day: 2, MinuteFloor: 1440, HourFloor: 4, HourProgress: schema.Progress{Workload: 5, Node: 6}, DayProgress: schema.Progress{Workload: 7, Node: 8}}) {
			t.Errorf("revision %d, want %d; days %v, %+v", v.Rev, rev, v.Days, v.Marks)
		}
		if v.DB != d || v.Ctx == nil {
			t.Error("another database")
		}
		return nil
	}
	view(t, d, read)
	err := d.View(ctx, func(v *db.View) error {
		if err := d.Write(ctx, func(tx *db.Tx) error { rev = tx.Rev; return tx.SetMeta("k", "v") }); err != nil {
			return err
		}
		if err := v.SQL.QueryRow("SELECT value FROM meta WHERE key = 'k'").Scan(new(string)); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("a snapshot changes: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	view(t, d, func(v *db.View) error {
		size, err := v.Size()
		if err != nil {
			return err
		}
		if info, err := os.Stat(dsn); err == nil && size < info.Size() || size < 1000 {
			t.Errorf("%d bytes, and the file has %d", size, info.Size())
		}
		return nil
	})
	stop := errors.New("stop")
	if err := d.View(ctx, func(*db.View) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	conn, err := d.Reader.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := ledgertest.Try(t, func() error { return d.ViewOn(ctx, conn, read) }); err != nil {
		t.Error(err)
	}
	if err := d.ViewOn(ctx, conn, func(*db.View) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.ViewOn(ended, conn, read); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if n := d.Reader.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}

// Readers have connections enough for some views at once, and keep them.
func TestReaders(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	const views = 4
	var nest func(n int) error
	nest = func(n int) error {
		if n == 0 {
			return nil
		}
		return d.View(t.Context(), func(*db.View) error { return nest(n - 1) })
	}
	if err := nest(views); err != nil {
		t.Fatal(err)
	}
	if s := d.Reader.Stats(); s.Idle < views || s.MaxOpenConnections != db.MaxWorkers()+8 {
		t.Errorf("connections of readers: %+v", s)
	}
}

// The tables and references of a database are listed.
func TestTables(t *testing.T) { testTables(t, ledgertest.SQLite(t)) }

func TestTablesPostgreSQL(t *testing.T) { testTables(t, ledgertest.PostgreSQL(t)) }

func testTables(t *testing.T, dsn string) {
	d := open(t, dsn)
	view(t, d, func(v *db.View) error {
		names, err := v.Tables()
		if err != nil {
			return err
		}
		if !slices.IsSorted(names) || !slices.Contains(names, "workload") || !slices.Contains(names, "group_day") || slices.Contains(names, "sqlite_schema") {
			t.Errorf("tables %v", names)
		}
		list, err := v.References()
		if err != nil {
			return err
		}
		if !slices.Contains(list, db.Reference{Table: "workload", Column: "node", To: "node", ToColumn: "id"}) || len(list) < 5 {
			t.Errorf("references %v", list)
		}
		return nil
	})
}

// Rows that exist are merged. The finest level at a minute is that of the rows kept there.
func TestUpsert(t *testing.T) { testUpsert(t, ledgertest.SQLite(t)) }

func TestUpsertPostgreSQL(t *testing.T) { testUpsert(t, ledgertest.PostgreSQL(t)) }

func testUpsert(t *testing.T, dsn string) {
	d := open(t, dsn)
	day := int64(1440)
	for i := range int64(2) {
		write(t, d, func(tx *db.Tx) error {
			if err := tx.EnsureMinutes(day); err != nil {
				return err
			}
			p := schema.NewPending(schema.NodeLayout)
			for _, k := range []schema.RowKey{{Minute: 1441, ID: 3}, {Minute: 1441, ID: 4 + i}, {Minute: 1440, ID: 5}} {
				p.Rows[k] = make([]int64, len(schema.NodeLayout.Columns))
				for c := range p.Rows[k] {
					p.Rows[k][c] = k.Minute + k.ID + int64(c) + i
				}
			}
			return tx.Upsert(schema.NodeMinuteTable(day), p)
		})
	}
	view(t, d, func(v *db.View) error {
		var dest []any
		got := make([]int64, len(schema.NodeLayout.Columns)+2)
		for i := range got {
			dest = append(dest, &got[i])
		}
		found := map[schema.RowKey][]int64{}
		err := db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			err := scan(dest...)
			found[schema.RowKey{Minute: got[0], ID: got[1]}] = slices.Clone(got[2:])
			return err
		}, "SELECT "+schema.NodeLayout.ColumnList()+" FROM "+schema.NodeMinuteTable(day))
		if err != nil {
			return err
		}
		want := schema.NewPending(schema.NodeLayout)
		for i := range int64(2) {
			for _, k := range []schema.RowKey{{Minute: 1441, ID: 3}, {Minute: 1441, ID: 4 + i}, {Minute: 1440, ID: 5}} {
				values := make([]int64, len(schema.NodeLayout.Columns))
				for c := range values {
					values[c] = k.Minute + k.ID + int64(c) + i
				}
				if err := want.Add(k, values); err != nil {
					return err
				}
			}
		}
		if !maps.EqualFunc(found, want.Rows, slices.Equal) {
			t.Errorf("rows %v, want %v", found, want.Rows)
		}
		return nil
	})
	// Folding has counted the rows of an hour, so late ones are counted as they come, each once.
	for i, want := range []int64{2, 3} {
		write(t, d, func(tx *db.Tx) error {
			tx.Hour = 2 * day
			p := schema.NewPending(schema.UsageLayout)
			for _, k := range []schema.RowKey{{Minute: 1441, ID: 7}, {Minute: 1441 + int64(i), ID: 8}} {
				p.Rows[k] = make([]int64, len(schema.UsageLayout.Columns))
				p.Rows[k][schema.ColCovered] = 1
			}
			return tx.Upsert(schema.UsageMinuteTable(day), p)
		})
		view(t, d, func(v *db.View) error {
			got, err := db.Ints(v.Ctx, v.SQL, "SELECT rows FROM kept WHERE day = $1", day)
			if err == nil && !slices.Equal(got, []int64{want}) {
				t.Errorf("%v rows of the day, want %d", got, want)
			}
			return err
		})
	}
	write(t, d, func(tx *db.Tx) error {
		tx.MinuteFloor, tx.HourFloor = 200, 100
		for minute, want := range map[int64]schema.Level{99: schema.Days, 100: schema.Hours, 199: schema.Hours, 200: schema.Minutes} {
			if got := tx.FinestLevel(minute); got != want {
				t.Errorf("minute %d: level %d, want %d", minute, got, want)
			}
		}
		return nil
	})
}

// A sink takes the rows that SQL passes to it, until it is left.
func TestSinks(t *testing.T) {
	d := open(t, ledgertest.SQLite(t))
	var rows [2][][]driver.Value
	var numbers []int64
	for i := range rows {
		n, leave := d.AddSink(func(v []driver.Value) { rows[i] = append(rows[i], slices.Clone(v)) })
		defer leave()
		numbers = append(numbers, n)
	}
	for i, n := range numbers {
		if _, err := d.Reader.ExecContext(t.Context(), "SELECT mete_take($1, $2, $3)", n, 10*i, 7); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(rows); got != "[[[0 7]] [[10 7]]]" {
		t.Errorf("the sinks took %s", got)
	}
}
