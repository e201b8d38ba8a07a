package check_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// run checks the ledger at dsn.
func run(t *testing.T, dsn string) *ledger.CheckResult {
	t.Helper()
	r, err := ledger.Check(t.Context(), dsn, func(ledger.CheckProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func lines(r *ledger.CheckResult) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s\n", f)
	}
	return b.String()
}

// fields returns what a finding is about that its text need not say: its minutes, and what is stored
// and should be.
func fields(f ledger.Finding) string {
	return fmt.Sprintf("%d %s %s %s", f.To-f.From, f.Resource, f.Have, f.Want)
}

func TestEverythingSQLite(t *testing.T)     { testEverything(t, ledgertest.SQLite) }
func TestEverythingPostgreSQL(t *testing.T) { testEverything(t, ledgertest.PostgreSQL) }

// testEverything checks that a ledger with something of everything is clean, and so is a server
// above it, and that each kind of damage is named.
func testEverything(t *testing.T, newDSN func(testing.TB) string) {
	dsn := newDSN(t)
	f := ledgertest.Fill(t, ledgertest.Open(t, dsn))
	if r := run(t, dsn); r.Total() > 0 || r.Nodes != 4 || len(r.Days) != 3 {
		t.Fatalf("%d nodes, %d days:\n%s", r.Nodes, len(r.Days), lines(r))
	}
	db, err := ledgertest.DB(t, dsn).Conn(t.Context())
	f.Must(err)
	defer func() { _ = db.Close() }() // only this test's
	exec := func(query string, args ...any) {
		t.Helper()
		if n, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		} else if rows, err := n.RowsAffected(); err == nil && rows == 0 && !strings.HasPrefix(query, "SET") && !strings.HasPrefix(query, "PRAGMA") && !strings.HasPrefix(query, "CREATE") {
			t.Fatalf("%s: no rows", query)
		}
	}
	if !strings.HasPrefix(dsn, "postgres") {
		exec("PRAGMA foreign_keys = 0")
	} else {
		exec("SET session_replication_role = replica") // no checks of references
	}
	one := func(query string, args ...any) (v any) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), query, args...).Scan(&v); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return v
	}
	m := ledgertest.Day.Unix() / 60
	system := one("SELECT w.id FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = 'host' AND w.kind = 'system'")
	systemShort := uint64(one("SELECT short FROM workload WHERE id = $1", system).(int64))
	host, guest := one("SELECT id FROM node WHERE node_id = 'host'"), one("SELECT id FROM node WHERE node_id = 'guest'")
	stream := batch.Stream{'h', 'o'}
	last := one("SELECT last FROM stream WHERE id = $1", stream[:])
	kept := one("SELECT rows FROM kept WHERE day = $1", m)
	exec("CREATE TEMPORARY TABLE keep AS SELECT * FROM node_minute_20260301 WHERE minute = $1 AND node = $2", m, host)
	exec("CREATE TEMPORARY TABLE keep2 AS SELECT * FROM minute_20260303 WHERE minute = $1", m+2880)
	exec("CREATE TEMPORARY TABLE keep3 AS SELECT * FROM group_day WHERE minute = $1", m)
	for _, c := range []struct {
		damage, repair string
		args           []any
		want           string
		fields         string // of the finding; "": none
	}{
		{"UPDATE minute_20260301 SET workload = 999 WHERE minute = $1 AND workload = $2", "UPDATE minute_20260301 SET workload = $2 WHERE minute = $1 AND workload = 999", []any{m, system},
			"orphan: 2026-03-01T00:00Z: 1 rows of table minute_20260301 have workload 999, which does not exist", "1   "},
		{"UPDATE node_hour SET node = 999 WHERE minute = $1 AND node = $2", "UPDATE node_hour SET node = $2 WHERE minute = $1 AND node = 999", []any{m, host},
			"orphan: 2026-03-01T00:00Z: 1 rows of table node_hour have node 999, which does not exist", "60   "},
		{"UPDATE batch SET stream = $2 WHERE stream = $1 AND number = 1", "UPDATE batch SET stream = $1 WHERE stream = $2", []any{stream[:], []byte{7}},
			"orphan: 1 rows of table batch have stream 07, which does not exist in table stream", ""},
		{"UPDATE workload_label SET workload = 999 WHERE workload = $1", "UPDATE workload_label SET workload = $1 WHERE workload = 999", []any{system},
			"orphan: 1 rows of table workload_label have workload 999, which does not exist in table workload", ""},
		{"UPDATE node SET run = 999, rev = rev + $1 - $1 WHERE id = $2", "UPDATE node SET run = $1 WHERE id = $2", []any{one("SELECT run FROM node WHERE id = $1", host), host},
			"orphan: 1 rows of table node have run 999, which does not exist in table kernel_run", ""},
		{"INSERT INTO kept (day, rows) VALUES ($1, 0)", "DELETE FROM kept WHERE day = $1", []any{m + 20*1440},
			"place: table minute_20260321 is missing", ""},
		{"DELETE FROM kept WHERE day = $1 AND rows = $2", "INSERT INTO kept (day, rows) VALUES ($1, $2)", []any{m, kept},
			"place: table minute_20260301 belongs to no day that is kept", ""},
		{"UPDATE minute_20260301 SET minute = minute + 7200 WHERE minute = $1 AND workload = $2", "UPDATE minute_20260301 SET minute = $1 WHERE minute = $1 + 7200 AND workload = $2", []any{m, system},
			"place: 2026-03-06T00:00Z: 1 rows of table minute_20260301 begin where no reader looks for them", "1   "},
		{"UPDATE hour SET minute = minute + 1 WHERE minute = $1 AND workload = $2", "UPDATE hour SET minute = $1 WHERE minute = $1 + 1 AND workload = $2", []any{m, system},
			"place: 2026-03-01T00:01Z: 1 rows of table hour begin where no reader looks for them", "1   "},
		{"UPDATE counter SET day_mark = day_mark + 1", "UPDATE counter SET day_mark = day_mark - 1", nil,
			"place: days are folded up to 2026-03-03T00:01Z, in the middle of one", ""},
		{"UPDATE counter SET minute_floor = hour_mark + 1440 - hour_mark % 1440", "UPDATE counter SET minute_floor = 0", nil,
			"place: minutes are dropped up to 2026-03-04T00:00Z, but hours are folded only up to 2026-03-03T01:00Z", ""},
		{"UPDATE stream SET next = next - 1 WHERE id = $1", "UPDATE stream SET next = next + 1 WHERE id = $1", []any{stream[:]},
			"stream: node same (host): stream 686f0000000000000000000000000000: batch 3 is booked, but the next one is 3", ""},
		{"UPDATE stream SET last = $2 WHERE id = $1 AND last = $3", "UPDATE stream SET last = $3 WHERE id = $1 AND last = $2", []any{stream[:], make([]byte, 32), last},
			"stream: node same (host): stream 686f0000000000000000000000000000: the mark has another hash than the last batch, 3", ""},
		{"UPDATE booked SET from_ns = from_ns - 120000000000 WHERE from_ns = $1 AND scope = '/'", "UPDATE booked SET from_ns = $1 WHERE from_ns = $1 - 120000000000 AND scope = '/'", []any{int64(time.Hour + 3*time.Minute)},
			"booked: node same (host): run 1 of boot b1, scope /: the range from 3660000000000 to 3840000000000 ns does not begin after the previous one, which ends at 3720000000000 ns: 1m0s booked twice", ""},
		{"UPDATE node SET name = 'same' WHERE node_id = 'clone'", "UPDATE node SET name = 'same~clone' WHERE node_id = 'clone'", nil,
			`name: 2 nodes of cluster "c" have the name "same", the first is clone, the last host`, ""},
		{"UPDATE reconciled SET differing = compared + 1 WHERE node = $1", "UPDATE reconciled SET differing = 1 WHERE node = $1", []any{guest},
			"share: node same~guest (guest): 2026-03-01T00:00Z: guest " + ledgertest.GuestUUID + ": 4 shares compared, 5 of them differ, by at most 5 uJ", "1440   "},
		{"UPDATE reconciled SET compared = 2 WHERE node = $1", "UPDATE reconciled SET compared = 4 WHERE node = $1", []any{guest},
			"share: node same~guest (guest): 2026-03-01T00:00Z: 2 shares are counted as compared, but 4 received ones were", "1440  2 4"},
		{"UPDATE within_day SET node = $2, host = $1 WHERE node = $1 AND host = $2", "UPDATE within_day SET node = $1, host = $2 WHERE node = $2 AND host = $1", []any{guest, host},
			"nested: node same (host): 2026-03-01T00:00Z: it is a guest of node guest, but as a workload of another node", "1440   "},
		{"INSERT INTO within_day (node, minute, host, workload, whole, rev) VALUES ($1, $2, $3, 0, 0, 1)", "DELETE FROM within_day WHERE node = $1 AND host = $3", []any{host, m, guest},
			"nested: node same (host): 2026-03-01T00:00Z: it and node guest are guests of each other", "1440   "},
		{"UPDATE within_day SET minute = minute + 1440 WHERE node = $1", "UPDATE within_day SET minute = minute - 1440 WHERE node = $1", []any{guest},
			"nested: node same~guest (guest): 2026-03-01T00:00Z: 3 rows of table day are within node 1, which is not known as its host on this day", "1440   "},
		{"UPDATE node SET source = 999 WHERE id = $1", "UPDATE node SET source = 0 WHERE id = $1", []any{host},
			"orphan: 1 rows of table node have source 999, which does not exist in table source", ""},
		{"UPDATE gap SET to_ns = from_ns - 1, detail = $1 WHERE reason = 'overlapped' AND to_ns = $2", "UPDATE gap SET to_ns = $2, detail = $1 WHERE reason = 'overlapped'", []any{"", ledgertest.Day.Add(2 * time.Hour).UnixNano()},
			"gap: node same (host): gap overlapped begins at 2026-03-01 01:00:00 +0000 UTC and ends at 2026-03-01 00:59:59.999999999 +0000 UTC", ""},
		{"INSERT INTO aside (node, stream, number, hash, sent, at_ns) VALUES ($1, $2, 4, $3, $3, $4)", "DELETE FROM aside", []any{host, stream[:], []byte{1}, (m + 7) * int64(time.Minute)},
			"conflict: node same (host): 2026-03-01T00:07Z: batch 4 of stream 686f0000000000000000000000000000 contradicted a booked one, and was put aside", "1   "},
		{"UPDATE booked SET to_ns = from_ns WHERE from_ns = $1 AND scope = '/'", "UPDATE booked SET to_ns = $2 WHERE from_ns = $1 AND scope = '/'", []any{int64(time.Hour + 3*time.Minute), int64(time.Hour + 4*time.Minute)},
			"booked: node same (host): run 1 of boot b1, scope /: the range from 3780000000000 to 3780000000000 ns is empty", ""},
		{"UPDATE booked SET from_ns = $2 WHERE from_ns = $1 AND scope = '/'", "UPDATE booked SET from_ns = $1 WHERE from_ns = $2 AND to_ns = $3 AND scope = '/'", []any{int64(time.Hour + 3*time.Minute), int64(time.Hour + 2*time.Minute), int64(time.Hour + 4*time.Minute)},
			"booked: node same (host): run 1 of boot b1, scope /: the range from 3720000000000 to 3840000000000 ns does not begin after the previous one, which ends at 3720000000000 ns: 0s booked twice", ""},
		{"UPDATE counter SET hour_mark = hour_mark + 1", "UPDATE counter SET hour_mark = hour_mark - 1", nil,
			"place: hours are folded up to 2026-03-03T01:01Z, in the middle of one", ""},
		{"UPDATE counter SET hour_floor = day_mark + 1440", "UPDATE counter SET hour_floor = 0", nil,
			"place: hours are dropped up to 2026-03-04T00:00Z, but days are folded only up to 2026-03-03T00:00Z", ""},
		{"DELETE FROM node_minute_20260301 WHERE minute = $1 AND node = $2", "INSERT INTO node_minute_20260301 SELECT * FROM keep", []any{m, host},
			"balance: node same (host): 2026-03-01T00:00Z: cpu: whole + skew is 0, the rows are 60000000000", "1 cpu 0 60000000000"},
		{"DELETE FROM minute_20260303 WHERE minute = $1 + 2880", "INSERT INTO minute_20260303 SELECT * FROM keep2", []any{m},
			"balance: node same (host): 2026-03-03T00:00Z: cpu: whole + skew is 60000000000, the rows are 0", "1 cpu 60000000000 0"},
		{"UPDATE workload SET from_minute = 15 WHERE id = $1", "UPDATE workload SET from_minute = 0 WHERE id = $1", []any{system},
			fmt.Sprintf("version: node same (host), workload %016x: 1970-01-01T00:15Z: the version that begins then is of no workload, or of another one", systemShort), "1   "},
		{"INSERT INTO workload (node, short, from_minute, version_of, rev) SELECT node, short, $2, id, 1 FROM workload WHERE id = $1", "DELETE FROM workload WHERE version_of = $1", []any{system, m + 60},
			fmt.Sprintf("version: node same (host), workload %016x: 2026-03-01T01:00Z: 2 rows of table minute_20260301 are of its version from 1970-01-01T00:00Z on, which is not the version of their time", systemShort), "1   "},
		{"DELETE FROM group_day WHERE minute = $1", "INSERT INTO group_day SELECT * FROM keep3", []any{m},
			"groups: 2026-03-01T00:00Z: cpu is 0, the rows are 420000000000", "1440 cpu 0 420000000000"},
	} {
		query, args := renumber(c.damage, c.args)
		exec(query, args...)
		r := run(t, dsn)
		if !strings.Contains("\n"+lines(r), "\n"+c.want+"\n") || r.Total() == 0 {
			t.Errorf("%s: got\n%s\nwant\n%s", c.damage, lines(r), c.want)
		}
		for _, f := range r.Findings {
			if got := fields(f); f.String() == c.want && got != cmp.Or(c.fields, "0   ") {
				t.Errorf("%s: the finding has %q", c.damage, got)
			}
		}
		try(t, f.L)
		query, args = renumber(c.repair, c.args)
		exec(query, args...)
	}
	if r := run(t, dsn); r.Total() > 0 {
		t.Errorf("after all repairs:\n%s", lines(r))
	}

	// A server above has the same, and is clean too.
	above := newDSN(t)
	core := ledgertest.Open(t, above)
	src := replica.Source{ID: "below", Cluster: "eu"}
	mark, err := core.StatesMark(t.Context(), src)
	for err == nil {
		var p *replica.Page
		if p, err = f.L.States(t.Context(), mark, replica.Offer{Rows: 7}); err != nil || p.Empty() {
			break
		}
		mark, err = core.TakeStates(t.Context(), src, p, ledgertest.Day.Add(72*time.Hour))
	}
	f.Must(err)
	f.Must(core.Fold(t.Context(), ledgertest.Day.Add(48*time.Hour+6*time.Minute)))
	if r := run(t, above); r.Total() > 0 || r.Nodes != 4 {
		t.Errorf("the server above has %d nodes:\n%s", r.Nodes, lines(r))
	}
	// Rows that it may not have yet are only a warning.
	if _, err := ledgertest.DB(t, above).ExecContext(t.Context(), "UPDATE minute_20260303 SET cpu = cpu + 1 WHERE cpu = 30000000000"); err != nil {
		t.Fatal(err)
	}
	if r := run(t, above); r.Defects > 0 || !strings.Contains(lines(r), "balance: node same (host): 2026-03-03T00:00Z: cpu: whole + skew is 60000000000, the rows are 60000000001; the server below may still be sending") {
		t.Errorf("%d defects:\n%s", r.Defects, lines(r))
	}
	if _, err := ledgertest.DB(t, above).ExecContext(t.Context(), "INSERT INTO foreign_node (source, node) SELECT source, id FROM node WHERE node_id = 'host'"); err != nil {
		t.Fatal(err)
	}
	try(t, core)
	if r := run(t, above); !strings.Contains(lines(r), "foreign: node same (host): its rows are from server below, whose rows of it are to be left out") {
		t.Errorf("rows of a foreign node:\n%s", lines(r))
	}
}

// try checks an open ledger with each fault of the database that no check had yet.
func try(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if err := ledgertest.Try(t, func() error { _, err := l.Check(t.Context()); return err }); err != nil {
		t.Error(err)
	}
}

// renumber leaves out of a query's arguments those that it does not use: a database refuses them.
func renumber(query string, all []any) (string, []any) {
	var args []any
	for i, a := range all {
		if old := fmt.Sprintf("$%d", i+1); strings.Contains(query, old) {
			args = append(args, a)
			query = strings.ReplaceAll(query, old, fmt.Sprintf("$%d", len(args)))
		}
	}
	return query, args
}

// Two clusters that book one kernel's time are warned about, and audited when the second begins.
func TestTwoClusters(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	f := ledgertest.NewFull(t, ledgertest.Open(t, dsn))
	m := ledgertest.Day.Unix() / 60
	for i, cluster := range []string{"eu", "us"} {
		node := "node" + cluster
		f.Must(f.L.PutNode(t.Context(), registry.Node{ID: "n" + node, Cluster: cluster, Name: "alpha", MachineID: "m", Boot: "b", At: ledgertest.Day}))
		e := f.Entry("n"+node, "b", m)
		e.Stream[2] = byte(i)
		ledgertest.Measured(e, time.Minute*time.Duration(1+i), time.Minute*time.Duration(5+i))
		f.Book(e)
	}
	try(t, f.L)
	r := run(t, dsn)
	const want = "clusters: node alpha (nnodeeu): the kernel with boot id b is booked in cluster eu and, by node nnodeus, in cluster us: both have its time between 2m0s and 5m0s after boot\n"
	if got := lines(r); got != want || r.Defects > 0 {
		t.Errorf("%d defects:\n%s\nwant a warning\n%s", r.Defects, got, want)
	}
	found, err := f.L.Audits(t.Context(), registry.AuditQuery{Limit: 10})
	if err != nil || len(found) != 1 || found[0].Action != "kernel.second-cluster" || found[0].Actor != "nnodeus" || found[0].Object != "b" || !strings.Contains(found[0].Detail, "eu") {
		t.Errorf("audit: %+v, %v", found, err)
	}
}

func TestBalanceOfCoarseRowsSQLite(t *testing.T) { testBalanceOfCoarseRows(t, ledgertest.SQLite(t)) }
func TestBalanceOfCoarseRowsPostgreSQL(t *testing.T) {
	testBalanceOfCoarseRows(t, ledgertest.PostgreSQL(t))
}

// Hours and days are balanced too, where nothing finer is kept.
func testBalanceOfCoarseRows(t *testing.T, dsn string) {
	f := ledgertest.Fill(t, ledgertest.Open(t, dsn))
	ctx := t.Context()
	now := ledgertest.Day.Add(60 * 24 * time.Hour)
	f.Must(errors.Join(f.L.Fold(ctx, now), f.L.Retain(ctx, now)))
	db := ledgertest.DB(t, dsn)
	check := func(want string) {
		t.Helper()
		if r := run(t, dsn); want == "" && r.Total() > 0 || !strings.Contains(lines(r), want) {
			t.Errorf("got\n%s\nwant %s", lines(r), want)
		}
	}
	damage := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(ctx, query, ledgertest.Day.Unix()/60); err != nil {
			t.Fatal(err)
		}
	}
	check("")
	damage("UPDATE node_hour SET whole_cpu = whole_cpu + 1 WHERE minute = $1")
	check("balance: node same (host): 2026-03-01T00:00Z: the hour: cpu: whole + skew is 120000000001, the rows are 120000000000")
	damage("UPDATE node_hour SET whole_cpu = whole_cpu - 1 WHERE minute = $1")
	// The largest amount that a day can hold stands for more, but not where the hours are less.
	damage("UPDATE day SET cpu = 9223372036854775807 WHERE minute = $1 AND workload = (SELECT min(workload) FROM day WHERE minute = $1)")
	check("cpu is 9223372036854775807, the finer rows are ")
	damage("UPDATE day SET cpu = (SELECT sum(cpu) FROM hour h WHERE h.workload = day.workload AND h.minute >= $1 AND h.minute < $1 + 1440) WHERE minute = $1 AND workload = (SELECT min(workload) FROM day WHERE minute = $1)")
	check("")
	damage("UPDATE hour SET covered_ms = covered_ms + 1 WHERE minute >= $1 AND minute < $1 + 1440 AND workload = (SELECT max(workload) FROM hour WHERE minute >= $1 AND minute < $1 + 1440)")
	check("day: node same~guest (guest), workload ")
	check(": within node ")
	damage("UPDATE hour SET covered_ms = covered_ms - 1 WHERE minute >= $1 AND minute < $1 + 1440 AND workload = (SELECT max(workload) FROM hour WHERE minute >= $1 AND minute < $1 + 1440)")
	now = ledgertest.Day.Add(3 * 365 * 24 * time.Hour)
	f.Must(errors.Join(f.L.Fold(ctx, now), f.L.Retain(ctx, now)))
	check("")
	damage("UPDATE day SET energy_package = energy_package + 1 WHERE minute = $1")
	check("balance: node same (host): 2026-03-01T00:00Z: the day: energy_package: whole + skew is")
	damage("UPDATE day SET energy_package = energy_package - 1 WHERE minute = $1")
	check("")
	damage("UPDATE node_day SET node = 999 WHERE minute = $1 AND node = (SELECT id FROM node WHERE node_id = 'host')")
	check("balance: 2026-03-01T00:00Z: node 999, which does not exist: the day: cpu: whole + skew is 240000000000, the rows are 0")
	damage("UPDATE node_day SET node = (SELECT id FROM node WHERE node_id = 'host') WHERE minute = $1 AND node = 999")
	// A day holds at most 2^63-1: beyond that its sums are not compared.
	damage("UPDATE node_day SET whole_cpu = 9223372036854775807 WHERE minute = $1")
	check("")
	damage("UPDATE node_day SET skew_cpu = skew_cpu + 30 WHERE minute = $1") // more than that in all
	check("")
	damage("UPDATE node_day SET skew_cpu = skew_cpu - 30 WHERE minute = $1")
	damage("UPDATE node_day SET whole_cpu = 9223372036854775806 WHERE minute = $1")
	check("balance: node same (host): 2026-03-01T00:00Z: the day: cpu: whole + skew is 9223372036854775786, the rows are 240000000000")
}

// All faults of a kind are counted, and the first hundred listed.
func TestManyFaults(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	ledgertest.Node(t, l, "a")
	var minutes []int64
	for i := range int64(130) {
		minutes = append(minutes, ledgertest.Day.Unix()/60+i)
	}
	if _, err := l.Book(t.Context(), []*batch.Entry{ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, minutes...)}); err != nil {
		t.Fatal(err)
	}
	if r := run(t, dsn); r.Counts["balance"] != 130 || r.Defects != 130 || len(r.Findings) != 100 {
		t.Errorf("%d of %v are listed, %d defects", len(r.Findings), r.Counts, r.Defects)
	}
}

// All faults of one hour are counted as well.
func TestManyFaultsOfHour(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	f := ledgertest.NewFull(t, ledgertest.Open(t, dsn))
	ledgertest.Node(t, f.L, "a")
	const many = 101 // one more than are listed
	m := ledgertest.Day.Unix() / 60
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, m)
	for i := range many - 1 {
		row := e.Minutes[0]
		row.Workload += workload.ShortID(i + 1)
		e.Minutes = append(e.Minutes, row)
	}
	n := batch.NodeMinute{Minute: m, Covered: time.Minute, CPUs: 1}
	n.Whole[0] = 10 * many
	e.Nodes = append(e.Nodes, n)
	f.Book(e)
	f.Fold(ledgertest.Day.Add(4 * time.Hour))
	db := ledgertest.DB(t, dsn)
	if _, err := db.ExecContext(t.Context(), "UPDATE hour SET covered_ms = covered_ms + 1"); err != nil {
		t.Fatal(err)
	}
	if r := run(t, dsn); r.Counts["hour"] != many || r.Defects != many || len(r.Findings) != 100 {
		t.Errorf("%d of %v are listed, %d defects", len(r.Findings), r.Counts, r.Defects)
	}
}

// A check reads beside a server that writes, and changes nothing.
func TestOpenReadOnly(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	file := filepath.Join(dir, "ledger.db")
	f := ledgertest.Fill(t, ledgertest.Open(t, file))
	before, err := f.L.Audits(ctx, registry.AuditQuery{Limit: 100})
	f.Must(err)
	if r := run(t, file); r.Total() > 0 {
		t.Errorf("beside a server:\n%s", lines(r))
	}
	backup := filepath.Join(dir, "backup.db")
	f.Must(f.L.Backup(ctx, backup))
	f.Must(f.L.Close())
	after := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		f.Must(err)
		return b
	}
	stopped, copied := after(file), after(backup)
	for _, path := range []string{file, backup} {
		if r := run(t, path); r.Total() > 0 {
			t.Errorf("%s:\n%s", path, lines(r))
		}
	}
	if !slices.Equal(stopped, after(file)) || !slices.Equal(copied, after(backup)) {
		t.Error("the check changed a file")
	}
	if names, err := filepath.Glob(backup + "?*"); err != nil || len(names) > 0 {
		t.Errorf("the check left %v, %v beside a backup", names, err)
	}

	// A damaged table is a defect.
	damaged := slices.Clone(copied)
	var root, page int
	f.Must(ledgertest.DB(t, backup).QueryRowContext(ctx, "SELECT rootpage, (SELECT page_size FROM pragma_page_size()) FROM sqlite_schema WHERE name = 'minute_20260301'").Scan(&root, &page))
	for i := (root - 1) * page; i < root*page; i++ {
		damaged[i] = 0xa5
	}
	path := filepath.Join(dir, "damaged.db")
	f.Must(os.WriteFile(path, damaged, 0o600))
	if r := run(t, path); r.Defects == 0 || r.Counts["file"] < 2 || !strings.Contains(lines(r), "file: minute_20260301: ") {
		t.Errorf("a damaged table:\n%s", lines(r))
	}
	// A check ends with its context.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := ledger.Check(ended, backup, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	l := ledgertest.Open(t, file)
	if now, err := l.Audits(ctx, registry.AuditQuery{Limit: 100}); err != nil || len(now) != len(before) {
		t.Errorf("%d audit lines, %v; want %d", len(now), err, len(before))
	}
}

// TestDayOfHours checks that a day of which only a late hour is left is checked from its beginning.
func TestDayOfHours(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	f := ledgertest.NewFull(t, ledgertest.Open(t, dsn))
	m := ledgertest.Day.Unix() / 60
	f.Must(f.L.PutNode(t.Context(), registry.Node{ID: "node", Cluster: "c", Name: "alpha", MachineID: "m", Boot: "b", At: ledgertest.Day}))
	f.Book(f.Entry("node", "b", m+305))
	now := ledgertest.Day.Add(60 * 24 * time.Hour)
	f.Must(errors.Join(f.L.Fold(t.Context(), now), f.L.Retain(t.Context(), now)))
	db := ledgertest.DB(t, dsn)
	for _, table := range []string{"day", "node_day", "group_day"} {
		if _, err := db.ExecContext(t.Context(), "DELETE FROM "+table); err != nil {
			t.Fatal(err)
		}
	}
	if r := run(t, dsn); !slices.Equal(r.Days, []int64{m}) || !strings.Contains(lines(r), "missing, but finer rows exist") {
		t.Errorf("days %v, want %d:\n%s", r.Days, m, lines(r))
	}
}
