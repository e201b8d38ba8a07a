package read_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// run runs statements on a database.
func run(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err, text)
		}
	}
}

// A listing is a ledger with two clusters: in c1 two nodes that send here, the second a guest of the first,
// and in c2 three of two servers below and one that is revoked.
type listing struct {
	*ledger.Ledger
	sql *sql.DB
	now time.Time
}

func newListing(t *testing.T) *listing {
	t.Helper()
	dsn := ledgertest.SQLite(t)
	db := ledgertest.DB(t, dsn)
	l := &listing{ledgertest.Open(t, dsn), db, time.Now().UTC()}
	ns := func(ago time.Duration) int64 { return l.now.Add(-ago).UnixNano() }
	day := ledgertest.Day.UnixNano()
	for i, n := range []struct {
		cluster      string
		source, host int
		through      time.Duration
		revoked      int64
	}{
		{"c1", 0, 0, 10 * time.Second, 0}, {"c1", 0, 1, 70 * time.Second, 0},
		{"c2", 1, 1, 4 * time.Minute, 0}, {"c2", 1, 0, 6 * time.Minute, 0}, {"c2", 2, 0, time.Hour, 0}, {"c2", 0, 0, 0, day + 7},
	} {
		run(t, db, fmt.Sprintf(`INSERT INTO node (id, node_id, cluster, name, machine_id, boot, enrolled_ns, through_ns, revoked_ns, cpus, source, host, host_workload, nested_ns, equal_ns, rev)
			VALUES (%[1]d, 'n%[1]d', '%[2]s', 'name%[1]d', 'm%[1]d', 'b%[1]d', %[3]d, %[4]d, %[5]d, %[1]d, %[6]d, %[7]d, %[8]d, %[3]d + 5, %[3]d + 6, 1)`,
			i+1, n.cluster, day, ns(n.through), n.revoked, n.source, n.host, n.host*11))
	}
	for i, s := range []struct {
		cluster       string
		seen, revoked int64
	}{{"c2", ns(time.Minute), 0}, {"c2", ns(time.Minute), 0}, {"c2", ns(time.Hour), 0}, {"c2", 0, day + 3}, {"c1", ns(time.Minute), 0}} {
		run(t, db, fmt.Sprintf("INSERT INTO source (id, source_id, cluster, name, enrolled_ns, revoked_ns, seen_ns, sequence, position) VALUES (%[1]d, 's%[1]d', '%[2]s', 'below%[1]d', %[3]d, %[4]d, %[5]d, %[1]d, 'e%[1]d.5')",
			i+1, s.cluster, day, s.revoked, s.seen))
	}
	for i, c := range []struct{ kind, project, pod string }{{"vm", "p", ""}, {"pod", "p", "x"}, {"pod", "q", "y"}} {
		run(t, db, fmt.Sprintf(`INSERT INTO workload (id, node, short, wid, kind, key, name, job, username, project, namespace, pod, container, rev)
			VALUES (%d, %d, %d, 'w%[1]d', '%[4]s', 'k', 'work%[1]d', '', 'u', '%[5]s', '', '%[6]s', '', 1)`, 11+i, min(i+1, 3), 5+i, c.kind, c.project, c.pod))
	}
	run(t, db, "INSERT INTO workload (id, node, short, job, rev) VALUES (20, 1, 50, 'unnamed', 1)",
		fmt.Sprintf("INSERT INTO stream (id, node, next, last, boot, opened_ns, seen_ns) VALUES (x'0a', 1, 3, x'', 'b', %[1]d, %[2]d), (x'0b', 1, 4, x'', 'b', %[1]d - 9, %[3]d), (x'0c', 3, 5, x'', 'c', %[1]d, %[1]d)", day, ns(time.Hour), ns(time.Minute)),
		fmt.Sprintf(`INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns) VALUES (1, %[1]d, %[1]d + 60000000000, 'forgotten', 'gone', %[1]d + 1),
			(1, %[1]d + 120000000000, %[1]d + 180500000000, 'overlapped', '', %[1]d + 2), (3, %[1]d + 60000000000, %[1]d + 120000000000, 'nosuch', '', %[1]d + 3)`, day),
		fmt.Sprintf("INSERT INTO shift (node, boot, at_ns, by_ns, from_ns) VALUES (1, 'b', %[1]d + 9, 3000000000, %[1]d + 60000000000)", day))
	return l
}

// TestUptimes checks for how long nodes were up: those of a server below count from their first figures.
func TestUptimes(t *testing.T) { synctest.Test(t, testUptimes) }

func testUptimes(t *testing.T) {
	l := newListing(t)
	ago := func(d time.Duration) time.Time { return l.now.Add(-d) }
	hour := ago(time.Hour)
	system := func(node string) int64 {
		id, _ := workload.ShortIDOf(workload.NewID(node, workload.System, ""))
		return int64(id)
	}
	run(t, l.sql, fmt.Sprintf("UPDATE node SET enrolled_ns = %d; UPDATE node SET enrolled_ns = 0 WHERE source <> 0; UPDATE node SET source = 0, machine_id = 'm5 jobs' WHERE id = 5; INSERT INTO workload (id, node, short, first_minute, rev) VALUES (31, 3, %d, %d, 1), (32, 2, %d, %d, 1)",
		hour.UnixNano(), system("n3"), hour.Unix()/60, system("n2"), hour.Unix()/60-60),
		fmt.Sprintf(`INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns) VALUES (1, %[1]d, %[1]d + 60000000000, 'rebooted', '', 1), (1, %[1]d + 60000000000, %[1]d + 90000000000, 'unwatched', '', 1),
			(2, %[1]d, %[1]d + 60000000000, 'state-lost', '', 1), (3, %[1]d - 60000000000, %[1]d - 30000000000, 'rebooted', '', 1)`, hour.Add(10*time.Minute).UnixNano()))
	const m = time.Minute
	down := func(from, to time.Duration) query.Interval {
		return query.Interval{From: hour.Add(from), To: hour.Add(to)}
	}
	two := ago(2 * time.Hour)
	all := []query.Uptime{
		{Node: "n1", Cluster: "c1", From: hour, Up: 59 * m, Down: m, Downs: 1, Last: down(10*m, 11*m)},
		{Node: "n2", Cluster: "c1", From: two, Up: 119*m - 70*time.Second, Unknown: m + 70*time.Second},
		{Node: "n3", Cluster: "c2", From: hour, Up: 59*m + m/2, Down: m / 2, Downs: 1, Last: down(9*m, 9*m+m/2)},
		{Node: "n6", Cluster: "c2", From: hour, Up: 60 * m},
	}
	for i := range all {
		all[i].Name, all[i].To = "name"+all[i].Node[1:], l.now
	}
	for _, c := range []struct {
		node  string
		scope query.Scope
		want  []query.Uptime
	}{
		{"", query.Scope{All: true}, all}, {"", query.Scope{Clusters: []string{"c2"}}, all[2:]}, {"", query.Scope{Projects: []string{"p"}}, nil},
		{"n2", query.Scope{All: true}, all[1:2]}, {"name3", query.Scope{All: true}, all[2:3]}, {"n2", query.Scope{Clusters: []string{"c2"}}, nil},
	} {
		var got []query.Uptime
		err := ledgertest.Try(t, func() (err error) {
			got, err = l.Uptimes(t.Context(), two, l.now.Add(time.Hour), c.node, c.scope)
			return err
		})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%q, %+v: %v, uptimes (-want +got):\n%s", c.node, c.scope, err, d)
		}
	}
}

// TestNodesListed checks the list of nodes, with their states and hosts.
func TestNodesListed(t *testing.T) { synctest.Test(t, testNodesListed) }

func testNodesListed(t *testing.T) {
	l := newListing(t)
	day := ledgertest.Day
	ago := func(d time.Duration) time.Time { return l.now.Add(-d) }
	host := &query.Nesting{Host: "n1", HostName: "name1", Workload: "w11", Name: "work11", Since: day.Add(5), Seen: day.Add(6)}
	all := []query.Node{
		{ID: "n1", Through: ago(10 * time.Second), Streams: 2, State: "live", Cluster: "c1"},
		{ID: "n2", Through: ago(70 * time.Second), State: "silent", Cluster: "c1", Nested: host},
		{ID: "n3", Through: ago(4 * time.Minute), Streams: 1, State: "live", Source: "s1", Cluster: "c2", Nested: host},
		{ID: "n4", Through: ago(6 * time.Minute), State: "silent", Source: "s1", Cluster: "c2"},
		{ID: "n5", Through: ago(time.Hour), State: "silent", Source: "s2", Cluster: "c2"},
		{ID: "n6", Through: ago(0), State: "revoked", Revoked: day.Add(7), Cluster: "c2"},
	}
	for i := range all {
		n := &all[i]
		n.Name, n.MachineID, n.Boot, n.CPUs, n.Enrolled = fmt.Sprint("name", i+1), fmt.Sprint("m", i+1), fmt.Sprint("b", i+1), i+1, day
	}
	outside := append([]query.Node{}, all[2:]...)
	outside[0].Nested = nil // its host is not in the scope
	for _, c := range []struct {
		scope query.Scope
		want  []query.Node
	}{{query.Scope{All: true}, all}, {query.Scope{Clusters: []string{"c1"}}, all[:2]}, {query.Scope{Clusters: []string{"c2"}}, outside}, {query.Scope{}, nil}} {
		var got []query.Node
		err := ledgertest.Try(t, func() (err error) {
			got, err = l.Nodes(t.Context(), c.scope)
			return err
		})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%+v: %v, nodes (-want +got):\n%s", c.scope, err, d)
		}
	}
}

// TestBelowListed checks the list of servers below.
func TestBelowListed(t *testing.T) { synctest.Test(t, testBelowListed) }

func testBelowListed(t *testing.T) {
	l := newListing(t)
	day := ledgertest.Day
	ago := func(d time.Duration) time.Time { return l.now.Add(-d) }
	all := []query.Source{
		{ID: "s5", Name: "below5", Cluster: "c1", Pages: 5, Epoch: "e5", Seen: ago(time.Minute), State: "behind"},
		{ID: "s1", Name: "below1", Cluster: "c2", Nodes: 2, Pages: 1, Epoch: "e1", Seen: ago(time.Minute), Through: ago(4 * time.Minute), State: "live"},
		{ID: "s2", Name: "below2", Cluster: "c2", Nodes: 1, Pages: 2, Epoch: "e2", Seen: ago(time.Minute), Through: ago(time.Hour), State: "behind"},
		{ID: "s3", Name: "below3", Cluster: "c2", Pages: 3, Epoch: "e3", Seen: ago(time.Hour), State: "silent"},
		{ID: "s4", Name: "below4", Cluster: "c2", Pages: 4, Epoch: "e4", Revoked: day.Add(3), State: "revoked"},
	}
	for i := range all {
		all[i].Enrolled = day
	}
	for _, c := range []struct {
		scope query.Scope
		want  []query.Source
	}{{query.Scope{All: true}, all}, {query.Scope{Clusters: []string{"c1"}}, all[:1]}, {query.Scope{Projects: []string{"p"}}, nil}} {
		var got []query.Source
		err := ledgertest.Try(t, func() (err error) {
			got, err = l.DownstreamServers(t.Context(), c.scope)
			return err
		})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%+v: %v, servers (-want +got):\n%s", c.scope, err, d)
		}
	}
}

// TestStreamsListed checks the lists of streams, dimensions and names.
func TestStreamsListed(t *testing.T) {
	l := newListing(t)
	ctx, day := t.Context(), ledgertest.Day
	try := func(call func() error) {
		t.Helper()
		if err := ledgertest.Try(t, call); err != nil {
			t.Error(err)
		}
	}
	streams := []query.Stream{
		{Node: "n1", Name: "name1", Cluster: "c1", ID: "0a", Next: 3, Boot: "b", Opened: day, Seen: l.now.Add(-time.Hour)},
		{Node: "n1", Name: "name1", Cluster: "c1", ID: "0b", Next: 4, Boot: "b", Opened: day.Add(-9), Seen: l.now.Add(-time.Minute)},
		{Node: "n3", Name: "name3", Cluster: "c2", ID: "0c", Next: 5, Boot: "c", Opened: day, Seen: day},
	}
	everything := query.Scope{All: true}
	for _, c := range []struct {
		q    query.StreamQuery
		want []query.Stream
	}{
		{query.StreamQuery{Scope: everything}, streams}, {query.StreamQuery{Scope: query.Scope{Clusters: []string{"c2"}}}, streams[2:]}, {query.StreamQuery{}, nil},
		{query.StreamQuery{Scope: everything, Node: "n1"}, streams[:2]}, {query.StreamQuery{Scope: everything, Node: "name3"}, streams[2:]},
		{query.StreamQuery{Scope: everything, Limit: 2}, streams[:2]}, {query.StreamQuery{Scope: everything, After: "0a", Limit: 1}, streams[1:2]},
		{query.StreamQuery{Scope: everything, Node: "n1", After: "0b"}, nil}, {query.StreamQuery{Scope: everything, After: "0bx"}, streams[2:]},
	} {
		var got []query.Stream
		try(func() (err error) { got, err = l.Streams(ctx, c.q); return err })
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%+v: streams (-want +got):\n%s", c.q, d)
		}
	}
	for _, c := range []struct {
		scope                query.Scope
		users, projects, pod int64
	}{
		{query.Scope{All: true}, 3, 3, 2}, {query.Scope{Clusters: []string{"c1"}}, 2, 2, 1}, {query.Scope{Projects: []string{"q"}}, 1, 1, 1},
		{query.Scope{Clusters: []string{"c1"}, Projects: []string{"q"}}, 0, 0, 0}, {query.Scope{}, 0, 0, 0}, {query.Scope{All: true, Projects: []string{"q"}}, 3, 3, 2},
	} {
		var got []query.DimensionCount
		try(func() (err error) { got, err = l.Dimensions(ctx, c.scope); return err })
		want := []query.DimensionCount{{Dimension: query.ByJob}, {Dimension: query.ByUser, Workloads: c.users}, {Dimension: query.ByProject, Workloads: c.projects}, {Dimension: query.ByNamespace}, {Dimension: query.ByPod, Workloads: c.pod}, {Dimension: query.ByContainer}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%+v: dimensions (-want +got):\n%s", c.scope, d)
		}
	}
	var names map[workload.ShortID]batch.Name
	try(func() (err error) {
		names, err = l.Names(ctx, "n1", []workload.ShortID{5, 6, 50})
		return err
	})
	want := map[workload.ShortID]batch.Name{5: {ID: "w11", Kind: workload.VM, Key: "k", Name: "work11", User: "u", Project: "p"}}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}

func TestLatestBootsSQLite(t *testing.T)     { testLatestBoots(t, ledgertest.SQLite(t)) }
func TestLatestBootsPostgreSQL(t *testing.T) { testLatestBoots(t, ledgertest.PostgreSQL(t)) }

// testLatestBoots checks that each node has the boot of the stream that it sent last, of several the one
// opened last, and that pages of streams are in the order of ids.
func testLatestBoots(t *testing.T, dsn string) {
	l, db := ledgertest.Open(t, dsn), ledgertest.DB(t, dsn)
	for _, id := range []string{"a", "b", "none"} {
		ledgertest.Node(t, l, id)
	}
	hex := func(id string) string {
		if strings.HasPrefix(dsn, "postgres") {
			return "decode('" + id + "', 'hex')"
		}
		return "x'" + id + "'"
	}
	for _, s := range []struct {
		id, node, boot string
		opened, seen   int
	}{
		{"ff", "a", "old", 1, 5}, {"0f", "a", "latest", 9, 7}, {"a0", "a", "opened before", 8, 7},
		{"01", "b", "latest", 3, 6}, {"02", "b", "old", 4, 5},
	} {
		run(t, db, fmt.Sprintf("INSERT INTO stream (id, node, next, last, boot, opened_ns, seen_ns) SELECT %s, id, 1, %s, '%s', %d, %d FROM node WHERE node_id = '%s'", hex(s.id), hex(""), s.boot, s.opened, s.seen, s.node))
	}
	boots, err := l.LatestBoots(t.Context())
	if d := cmp.Diff(map[string]string{"a": "latest", "b": "latest"}, boots); d != "" || err != nil {
		t.Errorf("%v, boots (-want +got):\n%s", err, d)
	}
	var ids []string
	for q := (query.StreamQuery{Scope: query.Scope{All: true}, Limit: 2}); ; {
		page, err := l.Streams(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, s := range page {
			ids, q.After = append(ids, s.ID), s.ID
		}
	}
	if d := cmp.Diff([]string{"01", "02", "0f", "a0", "ff"}, ids); d != "" {
		t.Errorf("streams (-want +got):\n%s", d)
	}
}

// TestGapsListed checks the lists of gaps and corrections of clocks.
func TestGapsListed(t *testing.T) {
	l := newListing(t)
	ctx, day := t.Context(), ledgertest.Day
	at := func(d time.Duration) time.Time { return day.Add(d) }
	gap := func(node int, from, to time.Duration, reason usage.Reason, detail string, booked, by time.Duration) query.Gap {
		return query.Gap{Node: fmt.Sprint("n", node), Name: fmt.Sprint("name", node), Gap: usage.Gap{From: at(from), To: at(to), Reason: reason, Detail: detail}, Booked: at(booked), Shift: by}
	}
	all := []query.Gap{
		gap(1, 2*time.Minute, 3*time.Minute+time.Second/2, usage.Overlapped, "", 2, 0),
		gap(1, time.Minute, time.Minute, usage.ParseReason(""), "", 9, 3*time.Second),
		gap(3, time.Minute, 2*time.Minute, usage.ParseReason("nosuch"), "", 3, 0),
		gap(1, 0, time.Minute, usage.Forgotten, "gone", 1, 0),
	}
	everything := query.Scope{All: true}
	for i, c := range []struct {
		from, to time.Duration
		node     string
		scope    query.Scope
		want     []query.Gap
	}{
		{-time.Hour, time.Hour, "", everything, all},
		{-time.Hour, time.Hour, "n1", everything, []query.Gap{all[0], all[1], all[3]}},
		{-time.Hour, time.Hour, "name3", everything, all[2:3]},
		{-time.Hour, time.Hour, "", query.Scope{Clusters: []string{"c2"}}, all[2:3]},
		{-time.Hour, time.Hour, "", query.Scope{Projects: []string{"p"}}, nil},
		{time.Minute, time.Minute + 1, "", everything, all[1:3]},
		{time.Minute + 1, 2 * time.Minute, "", everything, all[2:3]},
		{0, time.Minute, "", everything, all[3:]},
	} {
		var got []query.Gap
		err := ledgertest.Try(t, func() (err error) {
			got, err = l.Gaps(ctx, at(c.from), at(c.to), c.node, c.scope)
			return err
		})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%d: %v, gaps (-want +got):\n%s", i, err, d)
		}
		if c.node != "" {
			continue
		}
		n := 0
		if err := l.EachGap(ctx, at(c.from), at(c.to), c.scope, func(*query.Gap) { n++ }); err != nil || n != len(c.want) {
			t.Errorf("%d: %d gaps in no order, %v", i, n, err)
		}
	}
	// One more than a list may have.
	run(t, l.sql, fmt.Sprintf("WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i <= %d) INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns) SELECT 2, %d + i, %[2]d + i + 1, 'forgotten', '', 1 FROM c", query.MaxGaps, at(-2*time.Hour).UnixNano()))
	if got, err := l.Gaps(ctx, at(-3*time.Hour), at(-time.Hour), "", everything); len(got) != query.MaxGaps+1 || err != nil {
		t.Errorf("%d gaps of %d, %v", len(got), query.MaxGaps+1, err)
	}
	run(t, l.sql, "DELETE FROM gap WHERE node = 2")
	times, err := l.GapTimes(ctx)
	if d := cmp.Diff(map[string]time.Duration{"n1": 2*time.Minute + time.Second/2, "n3": time.Minute}, times); d != "" || err != nil {
		t.Errorf("%v, times of gaps (-want +got):\n%s", err, d)
	}
}

// TestWorkloadsListed checks from when to when the workloads of a list were used, and which of them are
// in it.
func TestWorkloadsListed(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	db := ledgertest.DB(t, dsn)
	l := ledgertest.Open(t, dsn)
	from, to := fill(t, db, 40, 3)
	first := from.Unix() / 60
	// Workload 1 has no rows on the first day, 2 none on the last, and 3 only on the second.
	run(t, db, fmt.Sprintf("DELETE FROM day WHERE minute = %d AND workload IN (1, 3) OR minute = %d AND workload IN (2, 3)", first, first+2*schema.DayMinutes))
	day := func(n int) time.Time { return from.AddDate(0, 0, n) }
	want := map[int64][2]time.Time{1: {day(1), day(3)}, 2: {day(0), day(2)}, 3: {day(1), day(2)}}
	q := query.Query{From: from, To: to, Scope: query.Scope{All: true}}
	list := func(q query.Query) (list []query.Workload) {
		t.Helper()
		if err := ledgertest.Try(t, func() (err error) {
			list, err = l.Workloads(context.Background(), q)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return list
	}
	all := list(q)
	if len(all) != 40 {
		t.Fatalf("%d workloads", len(all))
	}
	for _, w := range all {
		times, ok := want[w.Row]
		if !ok {
			times = [2]time.Time{day(0), day(3)}
		}
		if w.First != times[0] || w.Last != times[1] || w.Cluster != "c" || w.Node != fmt.Sprint("n", (w.Row-1)%10) || w.ID != workload.ID(fmt.Sprint("w", w.Row-1)) {
			t.Errorf("%+v, want %v", w, times)
		}
	}
	q.Where = map[query.Dimension][]string{query.ByWorkload: {"2", "3"}} // of rows 3 and 4
	q.Limit = 1
	some := list(q)
	if len(some) != 1 || some[0].Row != 3 {
		t.Fatalf("%+v", some)
	}
	q.After = some[0].PageKey()
	if some = list(q); len(some) != 1 || some[0].Row != 4 {
		t.Errorf("%+v", some)
	}
	for _, s := range []query.Scope{{}, {Clusters: []string{"d"}}, {Projects: []string{"p"}}} {
		q.Scope, q.After = s, ""
		if some = list(q); len(some) > 0 {
			t.Errorf("%+v sees %+v", s, some)
		}
	}
}

// TestSelfUnknown checks that a node that the ledger does not have is not found, that a workload which it
// does not have yet used nothing, and that another text than an id is invalid.
func TestSelfUnknown(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	ledgertest.Node(t, l, "a")
	id := workload.NewID("a", workload.Job, "1")
	for _, c := range []struct {
		node string
		id   workload.ID
		want error
	}{{"b", id, fault.ErrNotFound}, {"a", id, nil}, {"a", "no id", fault.ErrInvalid}} {
		if s, err := l.Self(t.Context(), c.node, c.id); !errors.Is(err, c.want) {
			t.Errorf("workload %s of node %s: %+v, %v, want %v", c.id, c.node, s, err, c.want)
		}
	}
}
