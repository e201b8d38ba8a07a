package fold_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/fold"
	"mete.dev/mete/internal/testkit/ledgertest"
)

const minute0 = 29538720 // of ledgertest.Day

// bookMixed books minutes of five workloads and their node on three days, with amounts, peaks and differing
// qualities.
func bookMixed(f *fixture) {
	f.t.Helper()
	for short := range workload.ShortID(5) {
		minutes := []int64{minute0, minute0 + 1, minute0 + 59, minute0 + 60, minute0 + 1439, minute0 + 1440, minute0 + 4000}
		e := ledgertest.Entry("a", batch.Stream{9, byte(short)}, batch.Mark{Next: 1}, short, 10, minutes...)
		for i := range e.Minutes {
			u := &e.Minutes[i].Usage
			u.Put(usage.MemoryPeak, int64(short)<<34+int64(7*i%5), usage.Measured)
			if i%2 == 0 {
				u.Put(usage.PressureIO, int64(i), usage.Modelled)
			}
		}
		if short == 0 {
			for _, m := range minutes {
				n := batch.NodeMinute{Minute: m, CPUs: 2, Covered: time.Minute}
				n.Whole[0] = 50
				e.Nodes = append(e.Nodes, n)
			}
		}
		if _, err := f.Book(f.t.Context(), []*batch.Entry{e}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// tables returns the rows that are folded, apart from their revisions.
func tables(t *testing.T, d *sql.DB) string {
	t.Helper()
	var all []string
	for _, table := range []string{"hour", "node_hour", "day", "node_day", "group_day", "stale_day", "kept"} {
		columns := strings.Fields(text(t, d, "SELECT name FROM pragma_table_info('"+table+"') WHERE name <> 'rev'"))
		list := strings.Join(columns, ", ")
		all = append(all, table+": "+text(t, d, "SELECT "+list+" FROM "+table+" ORDER BY "+list))
	}
	return strings.Join(append(all, "used: "+text(t, d, "SELECT first_minute, last_minute FROM workload ORDER BY short"),
		"marks: "+text(t, d, "SELECT hour_mark, day_mark, hour_workload, hour_node, day_workload, day_node FROM counter")), "\n")
}

// check checks that rows add up.
func (f *fixture) check() {
	f.t.Helper()
	lines, err := f.Check(f.t.Context())
	f.must(err)
	for _, line := range lines {
		f.t.Error(line)
	}
}

// Small and large slices give the same sums, and no more slices than needed.
func TestSums(t *testing.T) {
	var first string
	for _, c := range []struct {
		slice, slices int
		n             int64
	}{
		// Hours 0, 1, 23, 24 and 66 with rows, 2 days with their groups.
		{1 << 18, 5*2 + 2*2 + 2, 0},
		// Two of five workloads in 60 minutes, five of them in 24 hours, and all groups at once.
		{120, 5*(3+1) + 2*(1+1) + 2, 0},
		{1, 5*(5+1) + 2*(5+1) + 2*5, 0},
	} {
		cfg := ledger.Default()
		cfg.Slice = c.slice
		f := open(t, ledgertest.SQLite(t), cfg)
		bookMixed(f)
		began := time.Now()
		f.fold(3*dayLength - 1 + cfg.Grace) // the last hour is not over
		f.want("marks", marks, "71 2 -20513 -20513")
		f.want("seen", "SELECT first_minute - 29538720, last_minute - 29538720 FROM workload ORDER BY id LIMIT 1", "0 4000")
		f.check()
		got := tables(t, f.sql)
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("%d rows a slice: %s\nwant %s", c.slice, got, first)
		}
		s, err := f.Stats(t.Context())
		f.must(err)
		if s.Slices != int64(c.slices) || s.Folding <= 0 || s.Folding > time.Since(began) {
			t.Errorf("%d rows a slice: %d slices took %v, want %d", c.slice, s.Slices, s.Folding, c.slices)
		}
		if s.Rows != 35 || s.LatestRows != 5 || s.Bytes < 100_000 || !s.Hours.Equal(ledgertest.Day.Add(71*time.Hour)) || !s.Days.Equal(ledgertest.Day.Add(2*dayLength)) {
			t.Errorf("statistics are %+v", s)
		}
		if err := ledgertest.Try(t, func() error { _, err := f.Stats(t.Context()); return err }); err != nil {
			t.Error(err)
		}
		f.fold(3*dayLength - 1 + cfg.Grace) // again: nothing
		f.fold(3*dayLength + cfg.Grace)
		f.want("marks", marks, "72 3 -20513 -20513")
		f.check()
	}
}

// The hour in which rows begin is folded, and one that is not over is not.
func TestHourEnds(t *testing.T) {
	f := open(t, ledgertest.SQLite(t), ledger.Default())
	f.book(1, 120, 180)
	const grace = 5 * time.Minute
	fold := func(at time.Duration, want string, most int) {
		t.Helper()
		for err := range f.Folding(t.Context(), ledgertest.Day.Add(at)) {
			if most--; err != nil || most < 0 {
				t.Fatalf("more slices than needed, or %v", err)
			}
		}
		f.want("hours", "SELECT (hour_mark - 29538720) / 60, (SELECT count(*) FROM hour) FROM counter", want)
	}
	fold(2*time.Hour+grace, "2 0", 2) // also the days before
	fold(2*time.Hour+grace, "2 0", 0)
	fold(3*time.Hour+grace-1, "2 0", 0)
	fold(3*time.Hour+grace, "3 1", 2)
	fold(9*time.Hour+grace, "9 2", 3)
	fold(9*time.Hour+grace, "9 2", 0)
}

// interleave makes calls that read what to do first and then wait for their turns to write, in this order.
func interleave(t *testing.T, dsn string, cfg ledger.Config, calls ...func(ctx context.Context, f *fold.Folder) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := db.Open(t.Context(), dsn, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, len(calls))
		err = d.Write(t.Context(), func(*db.Tx) error {
			for _, call := range calls {
				f := fold.New(d, fold.Config{Minutes: cfg.Minutes, MinuteBytes: cfg.MinuteBytes, Hours: cfg.Hours, Batches: cfg.Batches, Grace: cfg.Grace, Slice: cfg.Slice})
				go func() { done <- call(t.Context(), f) }()
				synctest.Wait() // until it waits for its turn to write
			}
			return nil
		})
		for range calls {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// Several folders fold the same slices. Only one of them takes effect.
func TestFoldersAtOnce(t *testing.T) {
	cfg := ledger.Default()
	cfg.Slice = 1
	until := ledgertest.Day.Add(3 * dayLength)
	var want string
	for folders := 1; folders <= 3; folders += 2 {
		dsn := ledgertest.SQLite(t)
		f := open(t, dsn, cfg)
		bookMixed(f)
		f.must(f.Close())
		calls := make([]func(context.Context, *fold.Folder) error, folders)
		for i := range calls {
			calls[i] = func(ctx context.Context, f *fold.Folder) error { return f.Fold(ctx, until) }
		}
		interleave(t, dsn, cfg, calls...)
		got := tables(t, f.sql)
		if folders == 1 {
			want = got
		} else if got != want {
			t.Errorf("%d folders: %s\nwant %s", folders, got, want)
		}
	}
}

// A row that arrives before the first one is folded too, although a folder was about to pass its hour.
func TestLateBeforePass(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	f := open(t, dsn, ledger.Default())
	f.book(1, 300)
	f.must(f.Close())
	interleave(t, dsn, ledger.Default(), func(ctx context.Context, g *fold.Folder) error {
		// This takes its turn first, and moves the row.
		return g.Exec(ctx, "UPDATE minute_20260301 SET minute = minute - 240")
	}, func(ctx context.Context, g *fold.Folder) error {
		return g.Fold(ctx, ledgertest.Day.Add(8*time.Hour))
	})
	f.want("hours", hours, "1")
	f.want("marks", marks, "7 0 -20513 -20513")
}

// A day whose groups were summed in a run is not summed again in it, however many rows arrive.
func TestGroupsOnce(t *testing.T) {
	for _, slice := range []int{1, 1 << 18} {
		cfg := ledger.Default()
		cfg.Slice = slice
		f := open(t, ledgertest.SQLite(t), cfg)
		bookMixed(f)
		most := 200
		for err := range f.Folding(t.Context(), ledgertest.Day.Add(3*dayLength)) {
			if most--; err != nil || most < 0 {
				t.Fatalf("folding does not end, or %v", err)
			}
			if n := text(t, f.sql, "SELECT count(*) FROM group_day"); n != "0" && most%5 == 0 || most == 180 {
				f.book(workload.ShortID(most%5), 0)
			}
			if text(t, f.sql, "SELECT count(*) FROM stale_day") == "0" && text(t, f.sql, "SELECT count(*) FROM group_day") != "0" {
				f.book(1, 0)
			}
		}
		f.fold(3 * dayLength)
		f.want("stale days", "SELECT count(*) FROM stale_day", "0")
		lines, err := f.Check(t.Context())
		f.must(err)
		for _, line := range lines {
			if !strings.HasPrefix(line, "balance: ") {
				t.Error(line)
			}
		}
	}
}

// An amount of a day that does not fit is the largest, and there is one line of audit about it.
func TestSaturated(t *testing.T) {
	f := open(t, ledgertest.SQLite(t), ledger.Default())
	f.book(1, 0, 60)
	f.book(2, 0, 60)
	f.fold(3 * time.Hour)
	f.exec(fmt.Sprintf("UPDATE hour SET cpu = %d WHERE workload = 1", int64(math.MaxInt64/2+1)))
	f.fold(dayLength + time.Hour)
	f.want("amounts", "SELECT cpu FROM day ORDER BY workload", "9223372036854775807 20")
	f.want("audit", "SELECT object, substr(detail, 1, 10) FROM audit WHERE action = 'ledger.saturated'", "day 1 rows of ")
}

// A slow database commits in some time.
type slow struct {
	driver.Connector
	takes *time.Duration
}

func (s slow) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return slowConn{c.(ledgertest.Conn), s.takes}, nil
}

type slowConn struct {
	ledgertest.Conn
	takes *time.Duration
}

func (c slowConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.BeginTx(ctx, o)
	return slowTx{tx, c.takes}, err
}

type slowTx struct {
	driver.Tx
	takes *time.Duration
}

func (t slowTx) Commit() error {
	time.Sleep(*t.takes) // virtual
	return t.Tx.Commit()
}

// Slices grow while they are full and quick, and shrink if they are slow. Those of hours, days, groups and
// deleted rows do so each by itself.
func TestSizes(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	f := open(t, dsn, ledger.Default())
	f.book(1, 0, 60)
	f.exec(fmt.Sprintf("WITH RECURSIVE s (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM s WHERE i < %d) INSERT INTO workload (node, short, rev) SELECT 1, i, 1 FROM s", 3*fold.MinSlice),
		"INSERT INTO minute_20260301 (minute, workload, rev, present, covered_ms, cpu) SELECT 29538720, id, 1, 2, 1, 1 FROM workload WHERE id > 1")
	f.must(f.Close())
	synctest.Test(t, func(t *testing.T) {
		takes := new(time.Duration)
		d, g := reopen(t, dsn, ledger.Default(), func(c driver.Connector) driver.Connector { return slow{c, takes} })
		const small = fold.MinSlice
		check := func(what string, hours, days, groups, deleted int64) {
			t.Helper()
			if got, want := g.Sizes(), [4]int64{hours, days, groups, deleted}; got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		check("new", small, small, small, small)
		next := func(until time.Duration, slices int) {
			t.Helper()
			for err := range g.Folding(t.Context(), ledgertest.Day.Add(until)) {
				if err != nil {
					t.Fatal(err)
				}
				if slices--; slices == 0 {
					break
				}
			}
		}
		next(3*time.Hour, 1) // to the first hour
		check("passed", small, small, small, small)
		next(3*time.Hour, 1)
		check("quick", 2*small, small, small, small)
		*takes = 2 * fold.MaxHold
		next(3*time.Hour, 1)
		check("slow", small, small, small, small)
		*takes = 0
		next(3*time.Hour, -1)
		if got := g.Sizes(); got[0] <= small || got[1] != small || got[2] != small {
			t.Errorf("all hours: %v", got)
		}
		hours := g.Sizes()[0]
		next(26*time.Hour, -1)
		if got := g.Sizes(); got[0] != hours || got[1] <= small || got[2] <= small || got[3] != small {
			t.Errorf("days and groups: %v", got)
		}
		days, groups := g.Sizes()[1], g.Sizes()[2]
		if err := g.Retain(t.Context(), ledgertest.Day.Add(9*dayLength)); err != nil {
			t.Error(err)
		}
		check("deleted", hours, days, groups, 2*small) // 1,024 of 3,072 rows, and 2,047
		for _, c := range []struct {
			takes time.Duration
			want  int64
		}{{fold.MaxHold * 4 / 10, 2 * small}, {fold.MaxHold * 3 / 4, 2 * small * 2 / 3}} {
			*takes = c.takes
			if err := g.Exec(t.Context(), "INSERT INTO closing (guest, epoch, n, node, energy, from_ns, to_ns, compared, booked_ns) VALUES ('g', 'e', 1, 1, 0, 0, 0, 0, 0)"); err != nil {
				t.Error(err)
			}
			if err := g.Retain(t.Context(), ledgertest.Day.Add(9*dayLength)); err != nil {
				t.Error(err)
			}
			check(fmt.Sprint(c.takes), hours, days, groups, c.want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}
