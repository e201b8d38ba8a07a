package db

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/schema"
)

// fresh returns an open database with a node, whose id is 1.
func fresh(t *testing.T) *DB {
	t.Helper()
	d, err := Open(t.Context(), filepath.Join(t.TempDir(), "l.db"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	d.write(t, func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES ('a', '', '', '', '', 0, 0)")
		return err
	})
	return d
}

func (db *DB) write(t *testing.T, f func(*Tx) error) {
	t.Helper()
	if err := db.Write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

// number returns the integer of a query.
func (db *DB) number(t *testing.T, query string) (n int64) {
	t.Helper()
	if err := db.Reader.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A workload keeps its id, and is looked up once. A failed transaction leaves nothing.
func TestWorkloads(t *testing.T) {
	d := fresh(t)
	d.write(t, func(tx *Tx) error {
		if w, ok, err := tx.KnownWorkload(1, 7); ok || err != nil || w != (Workload{}) {
			t.Errorf("a workload that does not exist: %v, %t, %v", w, ok, err)
		}
		_, err := tx.Exec("INSERT INTO workload (node, short, wid, rev) VALUES (1, 8, 'w', 1)")
		return err
	})
	stop := errors.New("stop")
	err := d.Write(t.Context(), func(tx *Tx) error {
		if _, err := tx.Workload(1, 7); err != nil {
			return err
		}
		return stop
	})
	if err != stop || len(d.workloads) > 0 {
		t.Errorf("%v, %v are known", err, d.workloads)
	}
	var first, second Workload
	for i := range 3 {
		d.write(t, func(tx *Tx) error {
			for range 2 {
				a, err := tx.Workload(1, 7)
				if err != nil {
					return err
				}
				b, ok, err := tx.KnownWorkload(1, 8)
				if err != nil {
					return err
				}
				if i == 0 {
					first, second = a, b
				}
				if a != first || a.Named || a.ID == 0 || b != second || !b.Named || b.ID == 0 || !ok || a.ID == b.ID {
					t.Errorf("workloads %v and %v, before %v and %v", a, b, first, second)
				}
			}
			if want := 2 * min(i, 1); len(tx.DB.workloads) != want || len(tx.found) != 2-want {
				t.Errorf("%d workloads were found by earlier transactions, and %d by this one", len(tx.DB.workloads), len(tx.found))
			}
			return nil
		})
	}
	d.write(t, func(tx *Tx) error {
		tx.NameWorkload(1, 7, first)
		tx.Forget()
		if w, err := tx.Workload(1, 7); w.Named || err != nil {
			t.Errorf("a name that was forgotten: %v, %v", w, err)
		}
		tx.NameWorkload(1, 7, first)
		if w, ok, err := tx.KnownWorkload(1, 7); !ok || !w.Named || w.ID != first.ID || err != nil {
			t.Errorf("a named workload: %v, %v", w, err)
		}
		if w, err := tx.Workload(1, 8); !w.Named || w != second || err != nil {
			t.Errorf("the other workload: %v, %v", w, err)
		}
		return nil
	})
	// Looked up again, each has its name.
	clear(d.workloads)
	d.write(t, func(tx *Tx) error {
		a, err := tx.Workload(1, 8)
		b, ok, err2 := tx.KnownWorkload(1, 7)
		if a != second || !ok || b != (Workload{ID: first.ID}) || errors.Join(err, err2) != nil {
			t.Errorf("workloads %v and %v, %v, %v", a, b, err, err2)
		}
		return nil
	})
	if n := d.number(t, "SELECT count(*) FROM workload"); n != 2 {
		t.Errorf("%d workloads, want 2", n)
	}
}

// A workload has the version of its time, also after another process added or removed versions.
func TestVersions(t *testing.T) {
	d := fresh(t)
	var ids [3]int64
	at := func(tx *Tx, want ...int64) {
		t.Helper()
		w, ok, err := tx.KnownWorkload(1, 7)
		if got := []int64{w.ID, w.At(0), w.At(14), w.At(15), w.At(29), w.At(30), w.At(99), w.Latest()}; !ok || err != nil || !slices.Equal(got, want) || w.HasVersions() != (want[6] != want[0]) {
			t.Errorf("%d, %t, %v; want %d", got, ok, err, want)
		}
	}
	d.write(t, func(tx *Tx) error {
		for i, from := range []int64{0, 30, 15, 30, 0} { // not in order, and again
			id, err := tx.Version(1, 7, from)
			if err != nil {
				return err
			}
			if n := from / 15; i < 3 {
				ids[n] = id
			} else if ids[n] != id {
				t.Errorf("version %d is %d, was %d", from, id, ids[n])
			}
		}
		at(tx, ids[0], ids[0], ids[0], ids[1], ids[1], ids[2], ids[2], ids[2])
		return nil
	})
	d.write(t, func(tx *Tx) error { // as it is cached
		at(tx, ids[0], ids[0], ids[0], ids[1], ids[1], ids[2], ids[2], ids[2])
		return nil
	})
	if n := d.number(t, fmt.Sprintf("SELECT count(*) FROM workload WHERE node = 1 AND short = 7 AND version_of = %d", ids[0])); n != 2 {
		t.Errorf("%d versions after the first one, want 2", n)
	}
	// As another process does.
	d.write(t, func(tx *Tx) error {
		_, err := tx.Exec("DELETE FROM workload WHERE id = $1", ids[2])
		return err
	})
	d.write(t, func(tx *Tx) error { return tx.Define("UPDATE counter SET versions = versions + 1") })
	d.write(t, func(tx *Tx) error {
		at(tx, ids[0], ids[0], ids[0], ids[1], ids[1], ids[1], ids[1], ids[1])
		if _, err := tx.Exec("DELETE FROM workload WHERE id = $1", ids[1]); err != nil {
			return err
		}
		return tx.ForgetVersion(1, 7, 15)
	})
	d.write(t, func(tx *Tx) error {
		at(tx, ids[0], ids[0], ids[0], ids[0], ids[0], ids[0], ids[0], ids[0])
		return nil
	})
}

// A workload knows the minutes with which its versions begin, in order, and copies of it keep theirs.
func TestBegins(t *testing.T) {
	none := Workload{ID: 1}
	w := none
	w.add(version{30, 3})
	one := w
	w.add(version{15, 2})
	for _, c := range []struct {
		Workload
		want []int64
	}{{none, nil}, {one, []int64{30}}, {w, []int64{15, 30}}} {
		if got := c.Begins(); !slices.Equal(got, c.want) {
			t.Errorf("versions begin with %d, want %d", got, c.want)
		}
	}
	for minute, want := range map[int64]int{0: 2, 15: 2, 16: 1, 30: 1, 31: 0} {
		if got := w.CountSince(minute); got != want || none.CountSince(minute) != 0 {
			t.Errorf("%d versions from %d on, want %d", got, minute, want)
		}
	}
}

// A rollback to a savepoint leaves no version in the caches that the database has not, and none out that it has.
func TestVersionsOfSavepoints(t *testing.T) {
	d := fresh(t)
	d.write(t, func(tx *Tx) error { _, err := tx.Workload(1, 7); return err })
	savepoint := func(tx *Tx, f func() error) error {
		_, err := tx.Exec("SAVEPOINT apart")
		if err == nil {
			if err = f(); err != nil {
				tx.Forget()
				_, err = tx.Exec("ROLLBACK TO SAVEPOINT apart")
			}
		}
		_, err2 := tx.Exec("RELEASE SAVEPOINT apart")
		return errors.Join(err, err2)
	}
	check := func(tx *Tx, minute, want int64) error {
		t.Helper()
		w, _, err := tx.KnownWorkload(1, 7)
		if got := w.At(minute); got != want {
			t.Errorf("minute %d is of %d, want %d", minute, got, want)
		}
		return err
	}
	d.write(t, func(tx *Tx) error {
		var later int64
		err := savepoint(tx, func() (err error) {
			later, err = tx.Version(1, 7, 15)
			return err
		})
		return errors.Join(err, savepoint(tx, func() error {
			_, err := tx.Version(1, 8, 15)
			return errors.Join(err, errors.New("out of range"))
		}), check(tx, 20, later))
	})
	// Another process adds a version, and the counter is as this one would have left it.
	if _, err := d.Conn.ExecContext(t.Context(), "INSERT INTO workload (node, short, from_minute, version_of, rev) SELECT 1, 7, 30, id, 9 FROM workload WHERE short = 7 AND version_of = 0"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Conn.ExecContext(t.Context(), "UPDATE counter SET versions = versions + 1"); err != nil {
		t.Fatal(err)
	}
	d.write(t, func(tx *Tx) error {
		return check(tx, 40, d.number(t, "SELECT id FROM workload WHERE from_minute = 30"))
	})
}

// The cache of workloads is emptied before it has too many.
func TestMaxCached(t *testing.T) {
	d := fresh(t)
	d.maxCached = 3
	for before, want := range []int{1, 2, 3, 1} {
		clear(d.workloads)
		for i := range before {
			d.workloads[workloadKey{2, workload.ShortID(i)}] = Workload{}
		}
		d.write(t, func(tx *Tx) error {
			tx.NameWorkload(1, 6, Workload{ID: 1})
			return nil
		})
		if len(d.workloads) != want || !d.workloads[workloadKey{1, 6}].Named {
			t.Errorf("with %d before: %d workloads are cached, want %d", before, len(d.workloads), want)
		}
	}
}

// The query of a lookup is prepared once, and shows what is committed, also after the schema has
// changed.
func TestLookup(t *testing.T) {
	d := fresh(t)
	names := func() (list []string) {
		t.Helper()
		err := d.Lookup(t.Context(), func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			list = append(list, name)
			return err
		}, "SELECT node_id FROM node WHERE id >= $1 ORDER BY id", 1)
		if err != nil {
			t.Error(err)
		}
		return list
	}
	if got := names(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("nodes %q", got)
	}
	d.write(t, func(tx *Tx) error {
		if err := tx.EnsureMinutes(1440); err != nil { // a new table
			return err
		}
		_, err := tx.Exec("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES ('b', '', '', '', '', 0, 0)")
		return err
	})
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			if got := names(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("nodes %q", got)
			}
		})
	}
	readers.Wait()
	if len(d.lookups) != 1 {
		t.Errorf("%d prepared lookups", len(d.lookups))
	}
	stop := errors.New("stop")
	err := d.Lookup(t.Context(), func(func(...any) error) error { return stop }, "SELECT node_id FROM node WHERE id >= $1 ORDER BY id", 1)
	if !errors.Is(err, stop) {
		t.Errorf("an error of the caller: %v", err)
	}
	if err := d.Lookup(t.Context(), nil, "SELECT nothing"); err == nil {
		t.Error("a wrong query succeeds")
	}
}

// The tables of a day are made once, and again after they were dropped. Statements stay prepared until
// their table is dropped.
func TestPrepared(t *testing.T) {
	d := fresh(t)
	const day = 1440
	table := schema.UsageMinuteTable(day)
	p := schema.NewPending(schema.UsageLayout)
	p.Rows[schema.RowKey{Minute: day, ID: 1}] = make([]int64, len(schema.UsageLayout.Columns))
	put := func(tx *Tx) error {
		if err := tx.EnsureMinutes(day); err != nil {
			return err
		}
		return errors.Join(tx.Upsert(table, p), tx.Upsert("hour", p))
	}
	stop := errors.New("stop")
	if err := d.Write(t.Context(), func(tx *Tx) error { return errors.Join(put(tx), stop) }); !errors.Is(err, stop) || len(d.tables) > 0 {
		t.Errorf("%v, %v are known", err, d.tables)
	}
	var prepared []string
	for i := range 3 {
		if i == 2 {
			d.write(t, func(tx *Tx) error {
				if err := tx.DropTable(table); err != nil {
					return err
				}
				_, err := tx.Exec("DELETE FROM kept WHERE day = $1", int64(day))
				return err
			})
			if n := len(d.prepared) + len(d.direct); d.tables[table] || n != len(prepared)-1 { // two fewer, and that of kept
				t.Errorf("after the table was dropped there are %v and %d statements", d.tables, n)
			}
			for query, s := range d.direct {
				if !slices.Contains(prepared, fmt.Sprintf("%s %p", query, s)) {
					t.Errorf("the statement %s was prepared again", query)
				}
			}
			for query, s := range d.prepared {
				if slices.Contains(prepared, fmt.Sprintf("%s %p", query, s)) != (query != "DELETE FROM kept WHERE day = $1") {
					t.Errorf("the statement %s was prepared again", query)
				}
			}
			if n := d.number(t, "SELECT count(*) FROM sqlite_schema WHERE name = '"+table+"'"); n != 0 {
				t.Error("the table is still there")
			}
		}
		d.write(t, put)
		if !d.tables[table] {
			t.Errorf("the table is not known: %v", d.tables)
		}
		if n := d.number(t, "SELECT count(*) FROM "+table); n != 1 {
			t.Errorf("%d rows", n)
		}
		if n := d.number(t, "SELECT sum(day) FROM kept"); n != day {
			t.Errorf("the days kept add up to %d", n)
		}
		var now []string
		for query, s := range d.prepared {
			now = append(now, fmt.Sprintf("%s %p", query, s))
		}
		for query, s := range d.direct {
			now = append(now, fmt.Sprintf("%s %p", query, s))
		}
		slices.Sort(now)
		if i == 1 && (!slices.Equal(now, prepared) || len(now) < 4) {
			t.Errorf("statements %q, before %q", now, prepared)
		}
		prepared = now
	}
	// A table that is known is not made again, so that a transaction need not look.
	d.write(t, func(tx *Tx) error { return tx.Define("DROP TABLE " + table) })
	d.write(t, func(tx *Tx) error {
		if err := tx.EnsureMinutes(day); err != nil {
			return err
		}
		if err := tx.EnsureMinutes(0); err != nil {
			return err
		}
		if err := tx.Define("DROP TABLE " + schema.UsageMinuteTable(0)); err != nil {
			return err
		}
		return tx.EnsureMinutes(0)
	})
	if n := d.number(t, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'minute!_%' ESCAPE '!' AND type = 'table'"); n != 0 {
		t.Errorf("%d tables were made again", n)
	}
}

// Each opening of a ledger begins an epoch, and so does a revision that is not above the last one. Of the
// oldest epochs nothing is remembered.
func TestEpochs(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "l.db")
	open := func() *DB {
		t.Helper()
		d, err := Open(ctx, file, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	epochOf := func(d *DB, rev int64) (id string) {
		t.Helper()
		err := d.View(ctx, func(v *View) (err error) {
			id, err = v.EpochOf(rev)
			return err
		})
		if err != nil || id == "" {
			t.Fatalf("epoch %q, %v", id, err)
		}
		return id
	}
	d := open()
	nothing := func(*Tx) error { return nil }
	d.write(t, nothing)
	d.write(t, nothing)
	rev := d.rev
	epoch := epochOf(d, rev)
	if epochOf(d, rev-1) != epoch || epochOf(d, 0) != d.Epoch() || epoch == d.Epoch() {
		t.Error("the epoch changes with each write, or is that of the database")
	}
	for _, back := range []int64{1, 2} { // the next revision is that of this write, or of the previous
		d.write(t, func(tx *Tx) error {
			_, err := tx.Exec("UPDATE counter SET rev = rev - $1", back)
			return err
		})
		d.write(t, nothing)
		now := epochOf(d, d.rev)
		if now == epoch || d.rev != rev+2-back {
			t.Errorf("back by %d: revision %d after %d, epoch %s after %s", back, d.rev, rev, now, epoch)
		}
		epoch, rev = now, d.rev
		d.write(t, nothing)
		if d.rev != rev+1 || epochOf(d, d.rev) != epoch {
			t.Errorf("the revision after it is %d, and has another epoch", d.rev)
		}
		rev = d.rev
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open()
	if d.Epoch() == "" || epochOf(d, rev+1) == epoch || epochOf(d, rev) != epoch {
		t.Error("no epoch begins when a ledger is opened")
	}
	d.write(t, func(tx *Tx) error {
		return tx.Define(fmt.Sprintf("WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < %d) INSERT INTO epoch (rev, id) SELECT 1000 + i, 'old' FROM s; UPDATE counter SET rev = 9000", maxEpochs))
	})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open()
	defer func() { _ = d.Close() }()
	if n, first := d.number(t, "SELECT count(*) FROM epoch"), d.number(t, "SELECT min(rev) FROM epoch"); n != 1000 || first != 1002 {
		t.Errorf("%d epochs since revision %d are remembered, want 1000", n, first)
	}
	if epochOf(d, 1001) != d.Epoch() || epochOf(d, 1002) != "old" {
		t.Error("a revision before all epochs is not of the database's")
	}
}

// A sink that was left is forgotten.
func TestLeave(t *testing.T) {
	d := fresh(t)
	n, leave := d.AddSink(nil)
	if _, ok := d.sinks.all.Load(n); !ok {
		t.Error("a sink is not known")
	}
	leave()
	if _, ok := d.sinks.all.Load(n); ok {
		t.Error("a sink that was left is known")
	}
}

// TestPostgresConns checks that a ledger takes few of the connections that PostgreSQL has.
func TestPostgresConns(t *testing.T) {
	handle, err := openPostgres("postgres://user@host/database") // it connects when it is used
	if err != nil {
		t.Fatal(err)
	}
	if n := handle.Stats().MaxOpenConnections; n != 16 {
		t.Errorf("%d connections at most, want 16", n)
	}
	if err := handle.Close(); err != nil {
		t.Error(err)
	}
}
