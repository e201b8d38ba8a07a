// Package ledgertest has a test suite for all kinds of ledgers, and a PostgreSQL server for
// tests.
package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// SQLite returns the dsn of an empty SQLite ledger.
func SQLite(t testing.TB) string { return filepath.Join(t.TempDir(), "ledger.db") }

// Open opens a ledger until the test ends.
func Open(t testing.TB, dsn string) *ledger.Ledger {
	t.Helper()
	return OpenWith(t, dsn, ledger.Default())
}

// OpenWith opens a ledger with settings until the test ends.
func OpenWith(t testing.TB, dsn string, cfg ledger.Config) *ledger.Ledger {
	t.Helper()
	l, err := openFaulty(t, dsn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLedger(t, l) })
	return l
}

// openFaulty opens a ledger for [Try].
func openFaulty(t tester, dsn string, cfg ledger.Config) (l *ledger.Ledger, err error) {
	t.Helper()
	err = Try(t, func() (err error) {
		l, err = ledger.OpenWrapped(context.Background(), dsn, cfg, quiet, faults.wrap)
		return err
	})
	return l, err
}

var quiet = slog.New(slog.DiscardHandler)

func closeLedger(t testing.TB, l *ledger.Ledger) {
	if err := l.Close(); err != nil {
		t.Errorf("closing the ledger: %v", err)
	}
}

// A suiteTest is a test of the suite.
type suiteTest struct {
	name string
	run  func(*testing.T, string)
}

// bookingTests are those of what nodes send.
var bookingTests = []suiteTest{
	{"Streams", testStreams}, {"Lost", testLost}, {"Names", testNames}, {"Pods", testPods}, {"PodLease", testPodLease}, {"PodNamedTwice", testPodNamedTwice}, {"Reserved", testReserved}, {"Volumes", testVolumes}, {"VolumeUse", testVolumeUse}, {"Connections", testConnections}, {"ConnectionsDropped", testConnectionsDropped}, {"ConnectionsRead", testConnectionsRead}, {"ConnectionsWithin", testConnectionsWithin}, {"Topology", testTopology}, {"ReservedGuest", testReservedGuest}, {"Slurm", testSlurm}, {"SlurmRead", testSlurmRead}, {"SlurmAgain", testSlurmAgain}, {"SlurmQuota", testSlurmQuota}, {"KubeRuns", testKubeRuns}, {"KubeRunLarge", testKubeRunLarge}, {"Range", testRange},
	{"Text", testText}, {"Late", testLate}, {"Large", testLarge}, {"Handovers", testHandovers}, {"Forged", testForged},
	{"NestedEnds", testNestedEnds}, {"Guests", testGuests}, {"Groups", testGroups}, {"Unsampled", testUnsampled}, {"NoContent", testNoContent},
	{"Booked", testBooked}, {"BootPlaces", testBootPlaces}, {"NumberAgain", testNumberAgain},
	{"Quota", testQuota}, {"RowQuota", testRowQuota}, {"ClusterQuota", testClusterQuota}, {"Within", testWithin},
	{"NestedDays", testNestedDays}, {"Inner", testInner}, {"OlderExtents", testOlderExtents}, {"ExtentMinute", testExtentMinute},
	{"InnerExtentMinute", testInnerExtentMinute}, {"Extents", testExtents},
}

// Run runs the test suite on a kind of ledger, the tests that draw many cases last. dsn returns
// an empty database each time.
func Run(t *testing.T, dsn func(testing.TB) string) {
	RunBooking(t, dsn)
	runTests(t, dsn, []suiteTest{
		{"Retain", testRetain}, {"Nodes", testNodes}, {"Clones", testClones}, {"Tokens", testTokens}, {"Enrolled", testEnrolled},
		{"Audit", testAudit}, {"Schema", testSchema}, {"Slices", testSlices}, {"Concurrent", testConcurrent}, {"Self", testSelf}, {"PodSelf", testPodSelf}, {"PodReserved", testPodReserved}, {"Unused", testUnused},
		{"NodeNames", testNodeNames}, {"Runs", testRuns}, {"RunOrder", testRunOrder}, {"RunMarks", testRunMarks}, {"KubeRunMarks", testKubeRunMarks},
		{"BookedOnce", testBookedOnce}, {"Model", testModel}, {"WithinDrawn", testWithinDrawn}, {"ExtentsDrawn", testExtentsDrawn}, {"VersionsDrawn", testVersionsDrawn}, {"ReservedDrawn", testReservedDrawn}, {"Answers", testAnswers},
	})
}

// RunBooking runs the tests of Run of what nodes send. They draw nothing.
func RunBooking(t *testing.T, dsn func(testing.TB) string) { runTests(t, dsn, bookingTests) }

func runTests(t *testing.T, dsn func(testing.TB) string, tests []suiteTest) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, dsn(t)) })
	}
}

// Draw runs the tests of Run that draw random histories, with the given number of rounds
// each.
func Draw(t *testing.T, dsn func(testing.TB) string, rounds int) {
	Checks(t, rounds)
	t.Run("Model", func(t *testing.T) { testModel(t, dsn(t)) })
	t.Run("Answers", func(t *testing.T) { testAnswers(t, dsn(t)) })
	t.Run("WithinDrawn", func(t *testing.T) { testWithinDrawn(t, dsn(t)) })
	t.Run("ExtentsDrawn", func(t *testing.T) { testExtentsDrawn(t, dsn(t)) })
	t.Run("VersionsDrawn", func(t *testing.T) { testVersionsDrawn(t, dsn(t)) })
	t.Run("ReservedDrawn", func(t *testing.T) { testReservedDrawn(t, dsn(t)) })
}

// Day is the midnight at which the tests' data begins.
var Day = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// AfterMidnight waits until 00:00 UTC is over if that is soon: quotas begin again then.
func AfterMidnight() {
	const day, soon = 24 * time.Hour, 2 * time.Minute
	for {
		now := time.Now()
		left := now.Truncate(day).Add(day).Sub(now)
		if left > soon {
			return
		}
		time.Sleep(left)
	}
}

// Node enrolls a node with this id.
func Node(t testing.TB, l *ledger.Ledger, id string) {
	t.Helper()
	n := registry.Node{ID: id, Cluster: "c", Name: "name-" + id, MachineID: "machine-" + id, Boot: "boot", At: Day}
	if err := l.PutNode(context.Background(), n); err != nil {
		t.Fatal(err)
	}
}

// Entry returns an entry that uses ns of CPU in each of the minutes.
func Entry(node string, s batch.Stream, mark batch.Mark, short workload.ShortID, ns int64, minutes ...int64) *batch.Entry {
	e := &batch.Entry{
		Node: node, Stream: s, Number: mark.Next, Previous: mark.Last,
		Sent: fmt.Appendf(nil, "%s %d %d %d %v", s, mark.Next, short, ns, minutes), Boot: "boot",
	}
	e.Hash = batch.HashOf(e.Sent)
	for _, m := range minutes {
		u := usage.Usage{Covered: 10 * time.Second}
		u.Put(usage.CPU, ns, usage.Measured)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m, Usage: u})
		e.Through = time.Unix(60*(m+1), 0).UTC()
	}
	return e
}

// tryBook books entries, with faults before.
func tryBook(t tester, l *ledger.Ledger, es ...*batch.Entry) (results []batch.Result, err error) {
	t.Helper()
	err = Try(t, func() (err error) {
		results, err = l.Book(context.Background(), es)
		return err
	})
	return results, err
}

// fold folds up to a time, with faults before.
func fold(t tester, l *ledger.Ledger, now time.Time) {
	t.Helper()
	if err := Try(t, func() error { return l.Fold(context.Background(), now) }); err != nil {
		t.Fatal(err)
	}
}

// book books entries, which must all get the same verdict.
func book(t testing.TB, l *ledger.Ledger, want batch.Verdict, es ...*batch.Entry) []batch.Result {
	t.Helper()
	results, err := tryBook(t, l, es...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil || r.Verdict != want {
			t.Fatalf("entry %d: %v, %v; want %v", i, r.Verdict, r.Err, want)
		}
	}
	return results
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func testStreams(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	Node(t, l, "b")
	s, m := batch.Stream{1}, minuteOf(Day)
	first := Entry("a", s, batch.Mark{Next: 1}, 7, 5, m)
	book(t, l, batch.Accepted, first)
	book(t, l, batch.Duplicate, first)
	second := Entry("a", s, batch.Mark{Next: 2, Last: first.Hash}, 7, 5, m)
	third := Entry("a", s, batch.Mark{Next: 3, Last: second.Hash}, 7, 5, m)
	if r := book(t, l, batch.OutOfOrder, third)[0]; r.Next != 2 {
		t.Errorf("out of order: next is %d, want 2", r.Next)
	}
	// In one call the second precedes the third.
	if r := book(t, l, batch.Accepted, second, third); r[1].Next != 4 {
		t.Errorf("next is %d, want 4", r[1].Next)
	}
	other := Entry("a", s, batch.Mark{Next: 2, Last: first.Hash}, 7, 6, m)
	forged := Entry("a", s, batch.Mark{Next: 4, Last: second.Hash}, 7, 6, m)
	for range 2 { // set aside once only
		book(t, l, batch.Conflict, other, forged)
	}
	db := reader{t, DB(t, dsn)}
	if n := db.number("SELECT count(*) FROM aside"); n != 2 {
		t.Errorf("%d batches aside, want 2", n)
	}
	if lines, err := l.Audits(ctx, registry.AuditQuery{Limit: 10}); err != nil || len(lines) != 2 || lines[0].Action != "batch.conflict" || lines[0].Actor != "a" {
		t.Errorf("audit is %v, %v", lines, err)
	}

	denied := []*batch.Entry{
		Entry("b", s, batch.Mark{Next: 4, Last: third.Hash}, 7, 5, m),
		Entry("unknown", batch.Stream{2}, batch.Mark{Next: 1}, 7, 5, m),
		Entry("b", batch.Stream{3}, batch.Mark{Next: 1}, 7, 5, m),
	}
	results, err := tryBook(t, l, denied...)
	if err != nil || !errors.Is(results[0].Err, fault.ErrDenied) || !errors.Is(results[1].Err, fault.ErrDenied) || results[2].Verdict != batch.Accepted {
		t.Errorf("streams of other nodes: %v, %v", results, err)
	} else if !strings.Contains(results[1].Err.Error(), `node "unknown" is not enrolled`) {
		t.Errorf("entry of an unknown node: %v", results[1].Err)
	}
	if err := l.RevokeNode(ctx, "b", Day); err != nil {
		t.Fatal(err)
	}
	results, err = tryBook(t, l, Entry("b", batch.Stream{4}, batch.Mark{Next: 1}, 7, 5, m))
	if err != nil || !errors.Is(results[0].Err, fault.ErrDenied) || !strings.Contains(results[0].Err.Error(), "node b is revoked") || fault.Hint(results[0].Err) == "" {
		t.Errorf("entry of a revoked node: %v, %v", results, err)
	}

	if mark, err := l.Mark(ctx, "a", s); err != nil || mark != (batch.Mark{Next: 4, Last: third.Hash}) {
		t.Errorf("mark is %v, %v", mark, err)
	}
	if mark, err := l.Mark(ctx, "a", batch.Stream{9}); err != nil || mark != (batch.Mark{Next: 1}) {
		t.Errorf("the mark of an unknown stream is %v, %v", mark, err)
	}
	if _, err := l.Mark(ctx, "b", s); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("mark of another node's stream: %v", err)
	}
	if at, err := l.Through(ctx, "a"); err != nil || !at.Equal(Day.Add(time.Minute)) {
		t.Errorf("through %v, %v", at, err)
	}
	if _, err := l.Through(ctx, "unknown"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Through of an unknown node: %v", err)
	}
	if got := db.usage(table("", m))[rowKey{"a", 7, m}].Amount[usage.CPU]; got != 15 {
		t.Errorf("booked %d ns, want 15", got)
	}
}

func testLost(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	Node(t, l, "b")
	lost := batch.Loss{
		Stream: batch.Stream{1}, From: 1, To: 3, Hash: batch.Hash{3},
		Gap: usage.Gap{From: Day, To: Day.Add(time.Hour), Reason: usage.Forgotten, Detail: "gone"},
	}
	report := func(node string, from, to uint64) (batch.Reply, error) {
		lost.From, lost.To = from, to
		return l.Lost(ctx, node, lost, Day.Add(2*time.Hour))
	}
	for i, c := range []struct {
		from, to uint64
		want     batch.Reply
	}{
		{2, 3, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}},
		{1, 3, batch.Reply{Verdict: batch.Accepted, Next: 4}},
		{1, 3, batch.Reply{Verdict: batch.Duplicate, Next: 4}},
		{3, 5, batch.Reply{Verdict: batch.OutOfOrder, Next: 4}},
	} {
		if r, err := report("a", c.from, c.to); err != nil || r.Verdict != c.want.Verdict || r.Next != c.want.Next {
			t.Errorf("%d: %v, %v; want %v", i, r, err, c.want)
		}
	}
	if _, err := report("b", 4, 4); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("another node's stream: %v", err)
	}
	if _, err := report("a", 5, 4); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("backward: %v", err)
	}
	e := Entry("a", lost.Stream, batch.Mark{Next: 4, Last: batch.Hash{3}}, 1, 1, minuteOf(Day))
	e.Shifts = []batch.Shift{{Boot: "b", At: Day.Add(3 * time.Hour), By: -90 * time.Second, From: Day.Add(time.Hour)}}
	book(t, l, batch.Accepted, e)
	gap := query.Gap{Node: "a", Name: "name-a", Gap: lost.Gap, Booked: Day.Add(2 * time.Hour)}
	shift := query.Gap{Node: "a", Name: "name-a", Gap: usage.Gap{From: Day.Add(time.Hour), To: Day.Add(time.Hour)}, Booked: Day.Add(3 * time.Hour), Shift: -90 * time.Second}
	for _, c := range []struct {
		from, to time.Duration
		node     string
		want     []query.Gap
	}{
		{0, 2 * time.Hour, "", []query.Gap{shift, gap}},
		{0, time.Hour, "a", []query.Gap{gap}},
		{time.Hour, time.Hour + 1, "a", []query.Gap{shift}},
		{time.Hour + 1, 2 * time.Hour, "", nil},
		{0, 2 * time.Hour, "b", nil},
	} {
		got, err := l.Gaps(ctx, Day.Add(c.from), Day.Add(c.to), c.node, query.Scope{All: true})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("gaps of %q in [%v, %v): %v\n%s", c.node, c.from, c.to, err, d)
		}
	}
	if got, err := l.GapTimes(ctx); err != nil || len(got) != 1 || got["a"] != lost.Gap.To.Sub(lost.Gap.From) {
		t.Errorf("gaps are %v long, %v; want those of a, %v", got, err, lost.Gap)
	}
	db := reader{t, DB(t, dsn)}
	if n := db.number("SELECT count(*) FROM gap WHERE reason = 'forgotten' AND detail = 'gone'"); n != 1 {
		t.Errorf("%d gaps, want 1", n)
	}
	// If there are many, only the latest are listed, and all are counted for those who can
	// see them.
	_, err := DB(t, dsn).ExecContext(ctx, fmt.Sprintf(`WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 10050)
		INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns, rev) SELECT n.id, %d + s.i, %[1]d + s.i + 1000000, 'rebooted', '', 1, 1 FROM s, node n WHERE n.node_id = 'b'`, Day.UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		scope        query.Scope
		listed, told int
	}{{query.Scope{All: true}, query.MaxGaps + 1, 10_052}, {query.Scope{Clusters: []string{"c"}}, query.MaxGaps + 1, 10_052}, {query.Scope{Clusters: []string{"d"}}, 0, 0}, {query.Scope{}, 0, 0}} {
		list, err := l.Gaps(ctx, Day, Day.Add(2*time.Hour), "", c.scope)
		if err != nil || len(list) != c.listed {
			t.Errorf("%+v: %d gaps, %v; want %d", c.scope, len(list), err, c.listed)
		}
		counted := map[usage.Reason]int{}
		var nodes []string
		err = l.EachGap(ctx, Day, Day.Add(2*time.Hour), c.scope, func(g *query.Gap) {
			counted[g.Reason]++
			if !slices.Contains(nodes, g.Node) {
				nodes = append(nodes, g.Node)
			}
		})
		if sum := counted[usage.Rebooted] + counted[lost.Gap.Reason] + counted[usage.UnknownReason]; err != nil || sum != c.told || c.told > 0 && (counted[usage.Rebooted] != 10_050 || len(nodes) != 2) {
			t.Errorf("%+v: counted %v of %v, %v; want %d", c.scope, counted, nodes, err, c.told)
		}
	}
	// The ledger says for how long the nodes with figures were up.
	_, err = DB(t, dsn).ExecContext(ctx, fmt.Sprintf(`INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns, rev)
		SELECT n.id, %d + 10000000000, %[1]d + 40000000000, 'rebooted', '', 1, 1 FROM node n WHERE n.node_id = 'a'`, Day.UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Uptimes(ctx, Day.Add(-time.Hour), Day.Add(2*time.Hour), "", query.Scope{All: true})
	want := []query.Uptime{{Node: "a", Name: "name-a", Cluster: "c", From: Day, To: Day.Add(2 * time.Hour), Up: 30 * time.Second, Down: 30 * time.Second, Unknown: 119 * time.Minute,
		Downs: 1, Last: query.Interval{From: Day.Add(10 * time.Second), To: Day.Add(40 * time.Second)}}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("uptimes: %v\n%s", err, d)
	}
}

// named returns a name of a workload of node "a".
func named(key string) batch.Name {
	return batch.Name{ID: workload.NewID("a", workload.Job, key), Kind: workload.Job, Key: key}
}

func testNames(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	s, mark, m := batch.Stream{1}, batch.Mark{Next: 1}, minuteOf(Day)
	name := named("k")
	short, _ := workload.ShortIDOf(name.ID)
	send := func(minute int64, names ...batch.Name) []workload.ShortID {
		e := Entry("a", s, mark, short, 1, minute)
		e.Names = names
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		return book(t, l, batch.Accepted, e)[0].Names
	}
	if got := send(m); !slices.Equal(got, []workload.ShortID{short}) {
		t.Errorf("asks for names %v, want %v", got, short)
	}
	code := 3
	name.Name, name.Job, name.User, name.Project, name.Exit = "n", "j", "u", "p", &code
	name.Labels = map[string]string{"app": "x", "gone": "y", "io.kubernetes.pod.namespace": "ns"}
	name.Started = Day
	if got := send(m+10, name); len(got) > 0 {
		t.Errorf("asks for names %v", got)
	}
	// An empty field erases nothing; the labels are those of the latest name.
	later := named("k")
	later.Name, later.Labels = "n2", map[string]string{"app": "z"}
	send(m+20, later)
	// An older name, from another stream, fills in only unknown fields.
	older := named("k")
	older.Name, older.Path, older.Labels = "n0", "/p", map[string]string{"app": "old", "tier": "t"}
	send(m+5, older)
	// Another user cannot take over the job.
	theirs := named("k")
	theirs.Name, theirs.Job, theirs.User, theirs.Project, theirs.Labels = "x", "x", "x", "x", map[string]string{"app": "x"}
	send(m+30, theirs)

	db := reader{t, DB(t, dsn)}
	rows := 0
	db.rows(func(row map[string]any) {
		rows++
		for column, want := range map[string]any{
			"wid": string(name.ID), "kind": "job", "key": "k", "name": "n2", "path": "/p", "job": "j", "username": "u",
			"project": "p", "namespace": "", "exit_code": int64(3), "started_ns": Day.UnixNano(), "ended_ns": int64(0),
		} {
			if row[column] != want {
				t.Errorf("%s is %v, want %v", column, row[column], want)
			}
		}
	}, "SELECT * FROM workload")
	labels := map[string]string{}
	db.rows(func(row map[string]any) { labels[row["key"].(string)] = row["value"].(string) }, "SELECT key, value FROM workload_label")
	if rows != 1 || len(labels) != 2 || labels["app"] != "z" || labels["tier"] != "t" {
		t.Errorf("%d workloads, labels %v", rows, labels)
	}

	// On the node of jobs that send their own figures no name has a pod or a project.
	if err := l.PutNode(t.Context(), registry.Node{ID: "b", Cluster: "c", Name: "b", MachineID: registry.JobsMachineID("m")}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"a", "b"} {
		n := named("container of " + node)
		n.Kind, n.Project = workload.Container, "q"
		n.Labels = map[string]string{"io.kubernetes.pod.namespace": "kube-system", "io.kubernetes.pod.name": "coredns", "tier": "t"}
		short, _ := workload.ShortIDOf(n.ID)
		e := Entry(node, batch.Stream{2, node[0]}, batch.Mark{Next: 1}, short, 1, m+40)
		e.Names = []batch.Name{n}
		book(t, l, batch.Accepted, e)
		want := "kube-system coredns q"
		if node == "b" {
			want = "  "
		}
		db.rows(func(row map[string]any) {
			if got := fmt.Sprint(row["namespace"], " ", row["pod"], " ", row["project"]); got != want {
				t.Errorf("a container of node %s has namespace, pod and project %q, want %q", node, got, want)
			}
		}, "SELECT * FROM workload WHERE kind = 'container' AND wid = $1", string(n.ID))
	}
}

// testRange: a value out of range makes its own entry fail, and no other.
func testRange(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	const large = 1<<57 - 1
	book(t, l, batch.Accepted, Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, large, m))
	es := []*batch.Entry{
		Entry("a", batch.Stream{2}, batch.Mark{Next: 1}, 2, 5, m),
		Entry("a", batch.Stream{3}, batch.Mark{Next: 1}, 1, 1, m),              // in sum with the existing rows
		Entry("a", batch.Stream{4}, batch.Mark{Next: 1}, 3, 1<<62, m),          // on its own
		Entry("a", batch.Stream{5}, batch.Mark{Next: 1}, 4, -1, m),             // negative
		Entry("a", batch.Stream{6}, batch.Mark{Next: 0}, 5, 1, m),              // without a number
		Entry("a", batch.Stream{7}, batch.Mark{Next: 1}, 6, 1, -m),             // before the epoch
		Entry("a", batch.Stream{8}, batch.Mark{Next: 1}, 2, large-100, m, m+1), // in range
	}
	results, err := tryBook(t, l, es...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		taken := i == 0 || i == 6
		if taken != (r.Err == nil && r.Verdict == batch.Accepted) || !taken && !errors.Is(r.Err, fault.ErrInvalid) {
			t.Errorf("entry %d: %v, %v", i, r.Verdict, r.Err)
		}
	}
	db := reader{t, DB(t, dsn)}
	got := db.usage(table("", m))
	if len(got) != 3 || got[rowKey{"a", 1, m}].Amount[usage.CPU] != large || got[rowKey{"a", 2, m}].Amount[usage.CPU] != large-95 {
		t.Errorf("booked %v", got)
	}
	if n := db.number("SELECT count(*) FROM stream"); n != 3 {
		t.Errorf("%d streams have moved, want 3", n)
	}
}

// testLarge: the largest possible minutes fold into hours; a day that does not fit stays at
// the largest value, and that is audited.
func testLarge(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	const large = 1<<57 - 1
	m := minuteOf(Day)
	var hour, day []int64
	for i := range int64(dayMinutes) {
		if day = append(day, m+i); i < hourMinutes {
			hour = append(hour, m+i)
		}
	}
	// The sum of the first two exceeds 64 bits in the group.
	book(t, l, batch.Accepted, Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, large, hour...),
		Entry("a", batch.Stream{2}, batch.Mark{Next: 1}, 2, large, hour...),
		Entry("a", batch.Stream{3}, batch.Mark{Next: 1}, 3, large, day...))
	if err := l.Fold(t.Context(), Day.Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	db := reader{t, DB(t, dsn)}
	hours, days := db.usage("hour"), db.usage("day")
	for i, c := range []struct {
		row  *usage.Usage
		want int64
	}{
		{hours[rowKey{"a", 3, m + 23*hourMinutes}], hourMinutes * large},
		{days[rowKey{"a", 1, m}], hourMinutes * large},
		{days[rowKey{"a", 3, m}], math.MaxInt64},
	} {
		if c.row == nil || c.row.Amount[usage.CPU] != c.want {
			t.Errorf("%d: %v, want %d", i, c.row, c.want)
		}
	}
	if n := db.number("SELECT cpu_hi FROM group_day"); n != 2*(hourMinutes*large>>32)+math.MaxInt64>>32 {
		t.Errorf("the group's high half is %d", n)
	}
	if lines, err := l.Audits(t.Context(), registry.AuditQuery{Limit: 10}); err != nil || len(lines) != 1 || lines[0].Action != "ledger.saturated" {
		t.Errorf("audit is %v, %v", lines, err)
	}
	// One more is refused.
	results, err := tryBook(t, l, Entry("a", batch.Stream{4}, batch.Mark{Next: 1}, 3, 1, m+dayMinutes-1))
	if err != nil || !errors.Is(results[0].Err, fault.ErrInvalid) {
		t.Errorf("more for a full day: %v, %v", results, err)
	}
}

// testText: text that a database cannot store does no harm.
func testText(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a\x00\xff")
	e := Entry("a\x00\xff", batch.Stream{1}, batch.Mark{Next: 1}, 1, 1, minuteOf(Day))
	n := named("k")
	n.Name, n.Labels = "x\x00y\xff", map[string]string{"\x00": "\xff"}
	e.Names = []batch.Name{n, {ID: "no id"}}
	e.Gaps = []usage.Gap{{From: Day, To: Day.Add(1), Detail: "\x00"}}
	e.Boot = "\x00"
	book(t, l, batch.Accepted, e)
	db := reader{t, DB(t, dsn)}
	db.rows(func(row map[string]any) {
		if row["name"] != "xy\uFFFD" {
			t.Errorf("name is %q", row["name"])
		}
	}, "SELECT name FROM workload WHERE wid <> ''")
}
