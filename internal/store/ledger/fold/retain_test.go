package fold_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/fold"
	"mete.dev/mete/internal/testkit/ledgertest"
)

const dayLength = 24 * time.Hour

// A fixture is a ledger whose calls are made with faults of the database before they succeed.
type fixture struct {
	*ledger.Ledger
	t    *testing.T
	sql  *sql.DB
	mark batch.Mark
}

func open(t *testing.T, dsn string, cfg ledger.Config) *fixture {
	t.Helper()
	f := &fixture{ledgertest.OpenWith(t, dsn, cfg), t, ledgertest.DB(t, dsn), batch.Mark{Next: 1}}
	ledgertest.Node(t, f.Ledger, "a")
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// book books 10 ns of CPU time of a workload in some minutes of the first day.
func (f *fixture) book(short workload.ShortID, minutes ...int64) {
	f.t.Helper()
	for i := range minutes {
		minutes[i] += ledgertest.Day.Unix() / 60
	}
	e := ledgertest.Entry("a", batch.Stream{1}, f.mark, short, 10, minutes...)
	f.mark = batch.Mark{Next: f.mark.Next + 1, Last: e.Hash}
	results, err := f.Book(f.t.Context(), []*batch.Entry{e})
	f.must(err)
	if results[0].Verdict != batch.Accepted {
		f.t.Fatal(results)
	}
}

// fold folds at a time after the first day began.
func (f *fixture) fold(at time.Duration) {
	f.t.Helper()
	f.must(ledgertest.Try(f.t, func() error { return f.Fold(f.t.Context(), ledgertest.Day.Add(at)) }))
}

func (f *fixture) retain(at time.Duration) {
	f.t.Helper()
	f.must(ledgertest.Try(f.t, func() error { return f.Retain(f.t.Context(), ledgertest.Day.Add(at)) }))
}

func (f *fixture) exec(statements ...string) {
	f.t.Helper()
	for _, s := range statements {
		if _, err := f.sql.ExecContext(f.t.Context(), s); err != nil {
			f.t.Fatalf("%s: %v", s, err)
		}
	}
}

// want compares what a query returns, in one line.
func (f *fixture) want(what, query, want string) {
	f.t.Helper()
	if got := text(f.t, f.sql, query); got != want {
		f.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// text returns the columns of a result, with spaces between them.
func text(t *testing.T, d *sql.DB, query string) string {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }() // only read
	var all []string
	for rows.Next() {
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		row := make([]any, len(names))
		for i := range row {
			row[i] = new(any)
		}
		if err := rows.Scan(row...); err != nil {
			t.Fatal(err)
		}
		for _, v := range row {
			all = append(all, fmt.Sprint(*v.(*any)))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// Queries for what is kept, in days and hours after the first day began.
const (
	keptDays = "SELECT (day - 29538720) / 1440 FROM kept ORDER BY day"
	marks    = "SELECT (hour_mark - 29538720) / 60, (day_mark - 29538720) / 1440, (minute_floor - 29538720) / 1440, (hour_floor - 29538720) / 1440 FROM counter"
	hours    = "SELECT (minute - 29538720) / 60 FROM hour ORDER BY minute"
)

func (f *fixture) rev() int64 {
	f.t.Helper()
	s, err := f.Stats(f.t.Context())
	f.must(err)
	return s.Rev
}

// Days of minutes are dropped when they have ended before the limit, and hours likewise, if they are
// folded. The floors move with them.
func TestLimits(t *testing.T) {
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours = 2*dayLength, 4*dayLength
	f := open(t, ledgertest.SQLite(t), cfg)
	for day := range int64(6) {
		f.book(1, 1440*day, 1440*day+1439)
	}
	f.fold(6*dayLength + cfg.Grace)
	f.want("marks", marks, "144 6 -20513 -20513")
	f.retain(3*dayLength + 23*time.Hour)
	f.want("kept before the limit", keptDays, "1 2 3 4 5")
	f.retain(4 * dayLength)
	f.want("kept", keptDays, "2 3 4 5")
	f.want("marks", marks, "144 6 2 -20513")
	f.want("hours", hours, "0 23 24 47 48 71 72 95 96 119 120 143")
	f.retain(6*dayLength + time.Hour)
	f.want("kept", keptDays, "4 5")
	f.want("hours", hours, "48 71 72 95 96 119 120 143")
	f.want("marks", marks, "144 6 4 2")
	before := f.rev()
	f.retain(6*dayLength + time.Hour)
	if got := f.rev(); got != before {
		t.Errorf("retention of nothing makes %d transactions", got-before)
	}
	f.retain(8*dayLength + time.Hour)
	f.want("kept up to what is folded", keptDays, "")
	f.want("marks", marks, "144 6 6 4")
	f.retain(9*dayLength + time.Hour)
	f.want("marks beyond", marks, "144 6 6 5")
	f.retain(20 * dayLength)
	f.want("marks far beyond", marks, "144 6 6 6")
	f.want("hours", hours, "")
	f.want("nodes' tables", "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%minute!_%' ESCAPE '!' AND type = 'table'", "0")
	lines, err := f.Check(t.Context())
	f.must(err)
	for _, line := range lines {
		if !strings.HasPrefix(line, "balance: ") {
			t.Error(line)
		}
	}
}

// The floor of minutes moves without minutes too, up to what is folded.
func TestFloorLimit(t *testing.T) {
	cfg := ledger.Default()
	cfg.Minutes = 2 * dayLength
	f := open(t, ledgertest.SQLite(t), cfg)
	f.fold(2*dayLength + cfg.Grace - 1)
	f.retain(4 * dayLength)
	f.want("an hour too early", marks, "47 1 -20513 -20513")
	f.fold(2*dayLength + cfg.Grace)
	f.retain(4 * dayLength)
	f.want("marks", marks, "48 2 2 -20513")
	f.retain(5 * dayLength)
	f.want("marks", marks, "48 2 2 -20513")
}

// The oldest days of minutes are dropped until the others fit the limit.
func TestBytes(t *testing.T) {
	const rows = 5
	for _, c := range []struct {
		bytes int64
		want  string
	}{
		{4*rows*fold.RowBytes - 1, "1 2 3"}, {3 * rows * fold.RowBytes, "1 2 3"}, {3*rows*fold.RowBytes - 1, "2 3"}, {1, "3"},
		{4 * rows * fold.RowBytes, "0 1 2 3"},
	} {
		cfg := ledger.Default()
		cfg.MinuteBytes = c.bytes
		f := open(t, ledgertest.SQLite(t), cfg)
		for day := range int64(4) {
			for short := range workload.ShortID(rows) {
				f.book(short, 1440*day)
			}
		}
		f.fold(3*dayLength + 2*time.Hour) // an hour of the last day
		f.want("rows", "SELECT rows FROM kept ORDER BY day", "5 5 5 5")
		f.retain(4 * dayLength)
		f.want(fmt.Sprintf("kept with %d bytes", c.bytes), keptDays, c.want)
	}
}

func TestLateBytesSQLite(t *testing.T)     { testLateBytes(t, ledgertest.SQLite(t)) }
func TestLateBytesPostgreSQL(t *testing.T) { testLateBytes(t, ledgertest.PostgreSQL(t)) }

// Minutes that are booked after their hour was folded count too, each once, and make room.
func testLateBytes(t *testing.T, dsn string) {
	const rows = 1100
	cfg := ledger.Default()
	cfg.MinuteBytes = rows * fold.RowBytes
	f := open(t, dsn, cfg)
	const counts = "SELECT rows FROM kept ORDER BY day"
	f.book(1, 0, 1440)
	f.fold(dayLength + 2*time.Hour)
	f.want("folded", counts, "1 1")
	f.book(1, 0, 1, 70, 1441) // the first is there
	f.want("late", counts, "3 2")
	f.book(1, 1440+120) // its hour is not folded
	f.want("in time", counts, "3 2")
	f.retain(2 * dayLength)
	f.want("kept", keptDays, "0 1")
	for range 2 {
		var es []*batch.Entry
		for short := range workload.ShortID(rows) {
			e := ledgertest.Entry("a", batch.Stream{1}, f.mark, short, 10, ledgertest.Day.Unix()/60+1440)
			f.mark = batch.Mark{Next: f.mark.Next + 1, Last: e.Hash}
			es = append(es, e)
		}
		_, err := f.Book(t.Context(), es)
		f.must(err)
		f.want("late rows of many workloads", counts, fmt.Sprint(3, rows+1))
	}
	f.retain(2 * dayLength)
	f.want("kept after late rows", keptDays, "1")
}

// Rows are deleted in slices of few rows, the last ones and the tables of the day too.
func TestSlicesOfDay(t *testing.T) {
	cfg := ledger.Default()
	cfg.Slice = 4
	f := open(t, ledgertest.SQLite(t), cfg)
	for short := range workload.ShortID(11) {
		f.book(short, 0, 60)
	}
	f.fold(dayLength + time.Hour)
	before := f.rev()
	f.retain(9 * dayLength)
	f.want("kept", keptDays, "")
	// 22 rows in slices of five, and the tables.
	if got := f.rev() - before; got != 5+1 {
		t.Errorf("%d transactions, want 6", got)
	}
	f.exec("UPDATE batch SET taken_ns = taken_ns / 1000")
	before = f.rev()
	f.retain(800 * dayLength)
	f.want("hours", hours, "")
	// 22 hours in slices of five, 11 batches.
	if got := f.rev() - before; got != 5+3 {
		t.Errorf("%d transactions, want 8", got)
	}
}

// Rows are forgotten at the age that their table has, apart from those that others refer to.
func TestForgotten(t *testing.T) {
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours, cfg.Batches, cfg.Slice = 3*dayLength, 5*dayLength, dayLength, 1
	f := open(t, ledgertest.SQLite(t), cfg)
	const now = 1000*dayLength + time.Hour
	at := func(age time.Duration) int64 { return ledgertest.Day.Add(now - age).UnixNano() }
	year, two := 365*dayLength, 2*dayLength
	var do []string
	add := func(format string, args ...any) { do = append(do, fmt.Sprintf(format, args...)) }
	add("INSERT INTO workload (node, short, rev) VALUES (1, 1, 1)")
	for i := range int64(3) { // 0 is kept
		for _, run := range []int64{1, 2, 3} {
			add("INSERT INTO batch (stream, number, hash, taken_ns) VALUES (x'0%d', %d, x'00', %d)", run, i, at(cfg.Batches)-i)
		}
		add("INSERT INTO kernel_run (cluster, boot, number, highest_ns) VALUES ('c', 'b', %d, 0)", i)
		add("INSERT INTO booked (run, scope, from_ns, to_ns, node, taken_ns) VALUES (%d, '', 0, 1, 1, %d)", i+1, at(cfg.Hours)-i)
		add("INSERT INTO extent_range (node, boot, workload, scope, ancestors, run, from_ns, to_ns, offset_ns, taken_ns) VALUES (1, 'b', 0, '', '', 0, %d, 9, 0, %d)", i, at(cfg.Minutes)-i)
		add("INSERT INTO placed_boot (node, boot, offset_ns, taken_ns) VALUES (1, '%d', 0, %d)", i, at(cfg.Hours)-i)
		add("INSERT INTO stream (id, node, next, last, boot, opened_ns, seen_ns) VALUES (x'1%d', 1, 1, x'', '', 0, %d)", i, at(cfg.Hours+year)-i)
		add("INSERT INTO share_series (guest, epoch, host, workload, name, first_ns, last_ns) VALUES ('g', '%d', 1, 1, '', 0, %d)", i, at(cfg.Hours+two)-i)
		add("INSERT INTO nested_series (node, series, host) VALUES (1, %d, 1)", i+1)
		add("INSERT INTO closing (guest, epoch, n, node, energy, from_ns, to_ns, compared, booked_ns) VALUES ('g', 'e', %d, 1, 0, 0, 0, 0, %d)", i, at(two)-i)
		add("INSERT INTO reconciled (minute, node, guest, host, workload, compared, differing, largest, n, to_ns) VALUES (%d, 1, 'g', 1, 1, 0, 0, 0, 0, 0)", ledgertest.Day.Unix()/60+995*1440-i)
	}
	add("INSERT INTO kernel_run (cluster, boot, number, highest_ns) VALUES ('c', 'measured', 0, 0)")
	add("UPDATE node SET run = 4")
	add("INSERT INTO stream (id, node, next, last, boot, opened_ns, seen_ns) VALUES (x'01', 1, 1, x'', '', 0, 0)") // has a batch
	add("INSERT INTO share_series (guest, epoch, host, workload, name, first_ns, last_ns) VALUES ('g', 'has a part', 1, 1, '', 0, 0)")
	add("INSERT INTO nested_series (node, series, host) VALUES (1, 4, 1)")
	for i := range int64(3) {
		add("INSERT INTO share_part (series, first_n, last_n, shares, booked_ns) VALUES (4, %d, 0, x'', %d)", i, at(two)-i)
	}
	f.exec(do...)
	f.retain(now)
	for table, want := range map[string]string{
		"batch, number": "0 0 0", "booked, run": "1", "extent_range, from_ns": "0", "placed_boot, boot": "0", "stream, id": "[1] [16]", "share_part, first_n": "0",
		"closing, n": "0", "share_series, id": "1 4", "nested_series, series": "1 4", "kernel_run, id": "1 4",
		"reconciled, minute": fmt.Sprint(ledgertest.Day.Unix()/60 + 995*1440),
	} {
		name, column, _ := strings.Cut(table, ", ")
		f.want(name, "SELECT "+column+" FROM "+name+" ORDER BY 1", want)
	}
}

// A day of minutes that cannot be dropped keeps its hours and later days, and pods that cannot be dropped are kept
// with their containers, but nothing else is.
func TestRetainGoesOn(t *testing.T) {
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours, cfg.Batches = 2*dayLength, 2*dayLength, dayLength
	f := open(t, ledgertest.SQLite(t), cfg)
	for day := range int64(6) {
		f.book(1, 1440*day)
	}
	f.fold(6*dayLength + cfg.Grace)
	f.exec("UPDATE batch SET taken_ns = 0",
		"INSERT INTO pod (id, cluster, uid, node, namespace, name, job, labels, created_ns, ended_ns) VALUES (1, 'c', 'u', 'n', '', '', '', '{}', 0, 1)",
		"INSERT INTO pod_container (cluster, pod, container, name) VALUES ('c', 1, 'x', '')",
		"CREATE TRIGGER keep_day BEFORE DELETE ON kept WHEN old.day = 29538720 + 1440 BEGIN SELECT raise(ABORT, 'the day is read'); END",
		"CREATE TRIGGER keep_pod BEFORE DELETE ON pod BEGIN SELECT raise(ABORT, 'the pod is read'); END")
	err := f.Retain(t.Context(), ledgertest.Day.Add(6*dayLength))
	if err == nil || !strings.Contains(err.Error(), "dropping the minutes of 2026-03-02") || !strings.Contains(err.Error(), "forgetting pods") {
		t.Error(err)
	}
	f.want("kept", keptDays, "1 2 3 4 5")
	f.want("hours", hours, "24 48 72 96 120")
	f.want("batches", "SELECT count(*) FROM batch", "0")
	f.want("pods", "SELECT count(*) FROM pod p JOIN pod_container c ON c.pod = p.id", "1")
	f.exec("DROP TRIGGER keep_day", "DROP TRIGGER keep_pod")
	f.must(f.Retain(t.Context(), ledgertest.Day.Add(6*dayLength)))
	f.want("kept", keptDays, "4 5")
	f.want("hours", hours, "96 120")
	f.want("pods", "SELECT count(*) FROM pod", "0")
	f.want("containers", "SELECT count(*) FROM pod_container", "0")
}

// Kernel runs are dropped once an hour, and when the clock went back.
func TestKernelRuns(t *testing.T) {
	f := open(t, ledgertest.SQLite(t), ledger.Default())
	for i, c := range []struct {
		at   time.Duration
		want string
	}{{0, "0"}, {time.Hour - 1, "1"}, {time.Hour, "0"}, {time.Hour, "0"}, {time.Minute, "0"}, {2 * time.Minute, "1"}} {
		f.exec(fmt.Sprintf("INSERT INTO kernel_run (cluster, boot, number, highest_ns) VALUES ('c', 'b', %d, 0)", i))
		f.must(f.Retain(t.Context(), ledgertest.Day.Add(c.at)))
		f.want(fmt.Sprintf("runs at %v", c.at), "SELECT count(*) FROM kernel_run", c.want)
	}
}

// Rows that are not folded in an older copy of the ledger, which replaced it meanwhile, are not dropped.
func TestReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		before, meanwhile string
		at                time.Duration
		want              error
	}{
		"rows":          {"", "UPDATE counter SET hour_mark = hour_mark - 1440", 1000 * dayLength, fault.ErrConflict},
		"nothing else":  {"", "UPDATE counter SET hour_mark = hour_mark - 0", 1000 * dayLength, nil},
		"tables":        {"DELETE FROM minute_20260301; DELETE FROM node_minute_20260301", "UPDATE counter SET hour_mark = hour_mark - 1440", 1000 * dayLength, fault.ErrConflict},
		"no days":       {"DROP TABLE minute_20260301; DROP TABLE node_minute_20260301; DELETE FROM kept", "UPDATE counter SET hour_mark = hour_mark - 1440", 8 * dayLength, fault.ErrConflict},
		"hours":         {"DROP TABLE minute_20260301; DROP TABLE node_minute_20260301; DELETE FROM kept; UPDATE counter SET minute_floor = hour_mark", "UPDATE counter SET day_mark = day_mark - 1440", 1000 * dayLength, fault.ErrConflict},
		"hours of days": {"DROP TABLE minute_20260301; DROP TABLE node_minute_20260301; DELETE FROM kept; UPDATE counter SET minute_floor = hour_mark", "UPDATE counter SET day_mark = day_mark - 0", 1000 * dayLength, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := ledgertest.SQLite(t)
			f := open(t, dsn, ledger.Default())
			f.book(1, 0, 60)
			f.fold(dayLength + 5*time.Minute)
			for s := range strings.SplitSeq(c.before, ";") {
				f.exec(s)
			}
			f.must(f.Close())
			state := func() string {
				return text(t, f.sql, "SELECT minute_floor, hour_floor, (SELECT count(*) FROM hour), (SELECT count(*) FROM kept) FROM counter")
			}
			was := state()
			synctest.Test(t, func(t *testing.T) {
				d, r := reopen(t, dsn, ledger.Default(), nil)
				done := make(chan error, 1)
				err := d.Write(t.Context(), func(tx *db.Tx) error {
					go func() { done <- r.Retain(t.Context(), ledgertest.Day.Add(c.at)) }()
					synctest.Wait() // until it has found rows to drop, and waits for its turn to write
					return tx.Define(c.meanwhile)
				})
				if err != nil {
					t.Error(err)
				}
				if err := <-done; !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			if now := state(); (now == was) != (c.want != nil) {
				t.Errorf("%s, was %s", now, was)
			}
		})
	}
}

// reopen opens a ledger to fold and to drop rows.
func reopen(t *testing.T, dsn string, cfg ledger.Config, wrap db.Wrapper) (*db.DB, *fold.Folder) {
	t.Helper()
	d, err := db.Open(t.Context(), dsn, false, wrap)
	if err != nil {
		t.Fatal(err)
	}
	return d, fold.New(d, fold.Config{Minutes: cfg.Minutes, MinuteBytes: cfg.MinuteBytes, Hours: cfg.Hours, Batches: cfg.Batches, Grace: cfg.Grace, Slice: cfg.Slice})
}

// PostgreSQL drops a day in one transaction, however many rows it has.
func TestDayAtOncePostgreSQL(t *testing.T) {
	cfg := ledger.Default()
	cfg.Slice = 1
	f := open(t, ledgertest.PostgreSQL(t), cfg)
	for short := range workload.ShortID(5) {
		f.book(short, 0)
	}
	f.fold(dayLength + time.Hour)
	before := f.rev()
	f.retain(9 * dayLength)
	f.want("kept", keptDays, "")
	if got := f.rev() - before; got != 1 {
		t.Errorf("%d transactions, want 1", got)
	}
}
