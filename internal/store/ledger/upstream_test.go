package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
	_ "mete.dev/mete/internal/testkit/wirewarm"
)

const day = 24 * 60

// first is the first minute of the tests, a midnight.
var first = time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60

func at(minute int64) time.Time { return time.Unix(60*(first+minute), 0) }

// testingT is the part of testing.T and rapid.T that the tests use.
type testingT interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
}

// A side is a ledger that a test opens and closes.
type side struct {
	*ledger.Ledger
	t   testingT
	dsn string
}

func (s *side) open() {
	cfg := ledger.Default()
	cfg.Upstream = true
	var err error
	if s.Ledger, err = ledger.Open(context.Background(), s.dsn, cfg, slog.New(slog.DiscardHandler)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *side) close() {
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// copy copies the file of a SQLite ledger, closing it meanwhile.
func (s *side) copy(from, to string) {
	s.close()
	for _, tail := range []string{"", "-wal", "-shm"} {
		b, err := os.ReadFile(from + tail)
		if errors.Is(err, os.ErrNotExist) {
			err = os.Remove(to + tail)
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		} else if err == nil {
			err = os.WriteFile(to+tail, b, 0o600)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	s.open()
}

// query returns the result of a query, one line for each row.
func (s *side) query(query string, args ...any) (lines []string) {
	s.t.Helper()
	driver, dsn := "pgx", s.dsn
	if !strings.HasPrefix(dsn, "postgres") {
		driver, dsn = "sqlite", "file:"+dsn+"?_pragma=busy_timeout(10000)"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	rows, err := db.Query(query, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		s.t.Fatal(err)
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			s.t.Fatal(err)
		}
		var line strings.Builder
		for i, n := range names {
			if v := fmt.Sprint(values[i]); v != "0" && v != "" {
				line.WriteString(n + "=" + v + " ")
			}
		}
		lines = append(lines, line.String())
	}
	if rows.Err() != nil {
		s.t.Fatal(rows.Err())
	}
	slices.Sort(lines)
	return lines
}

// amounts returns the columns of a table of usage that both ledgers must agree on.
func amounts(node bool) string {
	cols := []string{"d.minute", "d.present", "d.rough >> 2 AS rough", "d.covered_ms"}
	if node {
		cols = append(cols, "d.cpus", "d.violations", "d.lost", "d.whole_cpu", "d.skew_cpu")
	}
	usage.All.Each(func(r usage.Resource) { cols = append(cols, "d."+r.String()) })
	return strings.Join(cols, ", ")
}

// usage returns the rows of hours or days since a minute.
func (s *side) usage(table string, from int64) []string {
	lines := s.query("SELECT n.node_id, w.short, w.from_minute, h.node_id AS within, "+amounts(false)+" FROM "+table+" d JOIN workload w ON w.id = d.workload & 1099511627775 JOIN node n ON n.id = w.node LEFT JOIN node h ON h.id = d.workload >> 40 WHERE (d.present <> 0 OR d.covered_ms <> 0) AND d.minute >= $1", from)
	return append(lines, s.query("SELECT n.node_id, h.node_id AS within, "+amounts(true)+" FROM node_"+table+" d JOIN node n ON n.id = d.node & 1099511627775 LEFT JOIN node h ON h.id = d.node >> 40 WHERE (d.present <> 0 OR d.covered_ms <> 0) AND d.minute >= $1", from)...)
}

// names returns the names and labels of workloads.
func (s *side) names() []string {
	const cols = "n.node_id, n.name AS node, n.cpus, w.short, w.from_minute, w.wid, w.kind, w.key, w.name, w.path, w.parent, w.job, w.username, w.project, w.namespace, w.started_ns, w.exit_code"
	return append(s.query("SELECT "+cols+" FROM workload w JOIN node n ON n.id = w.node WHERE w.wid <> ''"),
		s.query("SELECT w.wid, w.from_minute, l.key, l.value FROM workload_label l JOIN workload w ON w.id = l.workload")...)
}

func (s *side) gaps() []string {
	// A repeated shift is replicated once.
	return slices.Compact(append(s.query("SELECT n.node_id, g.from_ns, g.to_ns, g.reason, g.detail FROM gap g JOIN node n ON n.id = g.node"),
		s.query("SELECT n.node_id, s.boot, s.at_ns, s.by_ns, s.from_ns FROM shift s JOIN node n ON n.id = s.node")...))
}

// guests returns which nodes were guests on which days, and which are guests at the end.
func (s *side) guests() []string {
	return append(s.query(`SELECT n.node_id, x.minute, h.node_id AS host, w.short FROM within_day x
		JOIN node n ON n.id = x.node JOIN node h ON h.id = x.host JOIN workload w ON w.id = x.workload`),
		s.query(`SELECT n.node_id, h.node_id AS host, w.short, n.nested_ns, n.equal_ns FROM node n
		JOIN node h ON h.id = n.host JOIN workload w ON w.id = n.host_workload`)...)
}

func (s *side) groups() []string {
	return s.query("SELECT minute, job, sum(cpu_hi) AS hi, sum(cpu_lo) AS lo FROM group_day GROUP BY minute, job HAVING sum(cpu_hi) + sum(cpu_lo) > 0")
}

func (s *side) floor(column string) (n int64) {
	if _, err := fmt.Sscanf(s.query("SELECT 1 + " + column + " AS n FROM counter")[0], "n=%d", &n); err != nil {
		s.t.Fatal(err)
	}
	return n - 1
}

var source = replica.Source{ID: "s1", Cluster: "c"}

// page returns the next page, encoded and decoded.
func (s *side) page(m replica.Mark, o replica.Offer) (*replica.Page, []byte) {
	s.t.Helper()
	p, err := s.States(context.Background(), m, o)
	if err != nil {
		s.t.Fatal(err)
	}
	if o.Masked {
		p.Mask([]byte("secret"))
	}
	sent, err := wire.EncodeStates(nil, p)
	if err != nil {
		s.t.Fatal(err)
	}
	got, err := wire.DecodeStates(sent, wire.Default())
	if err != nil {
		s.t.Fatal(err)
	}
	return got, sent
}

// takenAt is when the server above takes pages: after the times of all rows.
var takenAt = at(3000 * day)

// push sends everything that is left to send.
func push(below, above *side, o replica.Offer) (pages int) {
	below.t.Helper()
	ctx := context.Background()
	m, err := above.StatesMark(ctx, source)
	for ; err == nil || errors.Is(err, fault.ErrConflict); pages++ {
		if pages > 10_000 {
			below.t.Fatal("replication does not finish")
		}
		p, _ := below.page(m, o)
		if p.Empty() {
			return pages
		}
		m, err = above.TakeStates(ctx, source, p, takenAt)
	}
	below.t.Fatal(err)
	return 0
}

// A climb is one round of the property test.
type climb struct {
	*rapid.T
	below, above *side
	top          *side // upstream of above
	dir          string
	offer        replica.Offer
	marks        map[batch.Stream]batch.Mark
	booked       []*batch.Entry // in order
	due          int            // how many of them the lower ledger has
	old          *replica.Page  // sent before
	copies       map[string]int // of the lower ledger, with their number of entries
}

// TestUpstream checks that an upstream ledger ends up equal to the lower one, whatever happens on
// the way.
func TestUpstream(t *testing.T) { testUpstream(t, 8) }

// TestUpstreamDrawn is TestUpstream for many histories.
func TestUpstreamDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "draws many histories")
	testUpstream(t, 100)
}

func testUpstream(t *testing.T, rounds int) {
	t.Helper()
	ledgertest.Checks(t, rounds)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		dir := filepath.Join(t.TempDir(), fmt.Sprint(round))
		c := &climb{
			T: rt, dir: dir, below: &side{t: rt, dsn: filepath.Join(dir, "below.db")}, above: &side{t: rt, dsn: filepath.Join(dir, "above.db")},
			marks: map[batch.Stream]batch.Mark{}, copies: map[string]int{}, offer: replica.Offer{Finest: replica.Minute, Rows: 1000},
		}
		c.below.open()
		defer func() { _ = c.below.Close() }()
		c.above.open()
		defer func() { _ = c.above.Close() }()
		c.top = &side{t: rt, dsn: filepath.Join(dir, "top.db")}
		c.top.open()
		defer func() { _ = c.top.Close() }()
		for _, id := range []string{"a", "b"} {
			if err := c.below.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: "name-" + id}); err != nil {
				rt.Fatal(err)
			}
		}
		if rapid.Bool().Draw(rt, "hours") {
			c.offer.Finest = replica.Hour
		}
		for range rapid.IntRange(4, 25).Draw(rt, "steps") {
			c.step()
		}
		c.end()
	})
}

func (c *climb) now() time.Time { return at(int64(rapid.IntRange(0, 4*day).Draw(c.T, "now"))) }

func (c *climb) side() *side {
	if rapid.Bool().Draw(c.T, "above") {
		return c.above
	}
	return c.below
}

func (c *climb) step() {
	ctx := context.Background()
	var err error
	switch rapid.SampledFrom([]string{"book", "book", "book", "push", "push", "push", "pod", "fold", "fold", "retain", "reopen", "copy", "restore", "switch", "higher"}).Draw(c.T, "step") {
	case "book":
		c.book()
	case "pod":
		// Unlike batches, pods are not sent again to a ledger that was restored.
		job := rapid.SampledFrom([]string{"p/deployment/j1", "p/deployment/j2"}).Draw(c.T, "job")
		err = c.below.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{{UID: "u", Namespace: "p", Name: "pod", Job: job, Labels: map[string]string{"app": job}, Containers: map[string]string{"y": "app"}}}, c.now())
	case "push":
		c.push()
	case "higher":
		push(c.above, c.top, replica.Offer{Finest: replica.Resolution(rapid.IntRange(0, 1).Draw(c.T, "finest")), Rows: 100})
	case "fold":
		err = c.side().Fold(ctx, c.now())
	case "retain":
		err = c.side().Retain(ctx, c.now().Add(time.Duration(rapid.SampledFrom([]int{6, 7, 8, 780}).Draw(c.T, "days"))*24*time.Hour))
	case "reopen":
		s := c.side()
		s.close()
		s.open()
	case "copy":
		to := filepath.Join(c.dir, fmt.Sprintf("copy%d", len(c.copies)))
		s := c.side()
		s.copy(s.dsn, to)
		if s == c.below {
			c.copies[to] = c.due
		} else {
			c.copies[to] = -1
		}
	case "restore":
		c.restore()
	case "switch":
		c.offer.Finest = replica.Hour - c.offer.Finest
	}
	if err != nil {
		c.Fatal(err)
	}
}

// restore goes back to a copy of the lower ledger. Agents send again what was booked since.
func (c *climb) restore() {
	for from, n := range c.copies {
		if n < 0 {
			c.above.copy(from, c.above.dsn)
		} else {
			c.below.copy(from, c.below.dsn)
			c.due = n
		}
		return
	}
}

func (c *climb) book() {
	if c.due == len(c.booked) {
		c.booked = append(c.booked, c.entry())
	}
	results, err := c.below.Book(context.Background(), c.booked[c.due:c.due+1])
	if err != nil || results[0].Verdict != batch.Accepted {
		c.Fatal(results, err)
	}
	c.due++
}

func (c *climb) entry() *batch.Entry {
	node := rapid.SampledFrom([]string{"a", "b"}).Draw(c.T, "node")
	stream := batch.Stream{node[0]}
	m, ok := c.marks[stream]
	if !ok {
		m.Next = 1
	}
	e := &batch.Entry{Node: node, Stream: stream, Number: m.Next, Previous: m.Last, Boot: "boot"}
	e.Hash = batch.HashOf(fmt.Append(nil, node, m.Next))
	c.marks[stream] = batch.Mark{Next: m.Next + 1, Last: e.Hash}
	minutes := rapid.Int64Range(0, 3*day-1)
	if rapid.Bool().Draw(c.T, "close") {
		minutes = rapid.Int64Range(60, 63)
	}
	amount := rapid.Int64Range(1, 1<<50)
	for range rapid.IntRange(1, 6).Draw(c.T, "rows") {
		// A job is one all its life; a container may change.
		kind := rapid.SampledFrom([]workload.Kind{workload.Job, workload.Container}).Draw(c.T, "kind")
		key := rapid.SampledFrom([]string{"x", "y"}).Draw(c.T, "workload")
		name := batch.Name{ID: workload.NewID(node, kind, key), Kind: kind, Key: key, Job: rapid.SampledFrom([]string{"", "j1", "j2"}).Draw(c.T, "job")}
		if rapid.Bool().Draw(c.T, "named") {
			name.Labels = map[string]string{"app": name.Job}
			e.Names = append(e.Names, name)
		}
		short, _ := workload.ShortIDOf(name.ID)
		row := batch.Minute{Workload: short, Minute: first + minutes.Draw(c.T, "minute")}
		row.Usage.Covered = time.Second
		row.Usage.Put(usage.CPU, amount.Draw(c.T, "cpu"), usage.Quality(rapid.IntRange(1, 3).Draw(c.T, "quality")))
		if rapid.Bool().Draw(c.T, "peak") {
			row.Usage.Put(usage.MemoryPeak, amount.Draw(c.T, "peak"), usage.Measured)
		}
		if rapid.Bool().Draw(c.T, "connected") {
			row.Usage.Put(usage.NetworkRx, amount.Draw(c.T, "received"), usage.Measured)
			sketch := received(row.Usage.Amount[usage.NetworkRx], byte(rapid.IntRange(1, 3).Draw(c.T, "peer")))
			e.Connections = append(e.Connections, batch.Connections{Workload: short, Minute: row.Minute - row.Minute%batch.Quarter, Sketch: sketch})
		}
		e.Minutes = append(e.Minutes, row)
		n := batch.NodeMinute{Minute: row.Minute, Covered: time.Second, CPUs: 4}
		n.Whole[0], n.Skew[0] = row.Usage.Amount[usage.CPU], -5
		e.Nodes = append(e.Nodes, n)
		if end := time.Unix(60*(row.Minute+1), 0); end.After(e.Through) {
			e.Through = end
		}
	}
	if n := rapid.Int64Range(-3, 5).Draw(c.T, "share"); n >= 0 {
		// Node b is a guest of a, as one workload or another.
		h := batch.TimedHandover{From: at(n % 3 * day), To: at(n%3*day + 1)}
		h.Guest, h.Shares = "00112233-4455-6677-8899-aabbccddeeff", []power.Share{{Epoch: "e", N: n, Active: n}}
		if node == "a" {
			h.Workload = workload.NewID("a", workload.Job, rapid.SampledFrom([]string{"x", "y"}).Draw(c.T, "as"))
			row := batch.Minute{Minute: e.Minutes[0].Minute}
			row.Workload, _ = workload.ShortIDOf(h.Workload)
			row.Usage.Put(usage.EnergyRest, n, usage.Apportioned)
			e.Minutes = append(e.Minutes, row)
		}
		e.Handovers = []batch.TimedHandover{h}
	}
	if rapid.Bool().Draw(c.T, "gap") {
		e.Gaps = []usage.Gap{{From: at(0), To: c.now(), Reason: usage.Rebooted, Detail: "d"}}
		e.Shifts = []batch.Shift{{Boot: "boot", At: c.now(), By: time.Hour, From: at(0)}}
	}
	return e
}

// push sends some pages, of which some are not answered, and some come again.
func (c *climb) push() {
	ctx := context.Background()
	m, err := c.above.StatesMark(ctx, source)
	if err != nil {
		c.Fatal(err)
	}
	o := c.offer
	o.Rows = rapid.IntRange(1, 20).Draw(c.T, "page")
	for range rapid.IntRange(1, 6).Draw(c.T, "pages") {
		p, _ := c.below.page(m, o)
		if c.old != nil && rapid.Bool().Draw(c.T, "again") {
			before, err := c.above.StatesMark(ctx, source)
			if err != nil {
				c.Fatal(err)
			}
			if _, err := c.above.TakeStates(ctx, source, c.old, takenAt); !before.SamePosition(c.old.From) && !errors.Is(err, fault.ErrConflict) {
				c.Fatalf("an old page: %v", err)
			}
		}
		if p.Empty() {
			return
		}
		if c.old = p; rapid.Bool().Draw(c.T, "lost") {
			continue
		}
		if rapid.IntRange(0, 5).Draw(c.T, "shorter retention") == 5 {
			now := c.now()
			if err := errors.Join(c.above.Fold(ctx, now), c.above.Retain(ctx, now.Add(8*24*time.Hour))); err != nil {
				c.Fatal(err)
			}
		}
		next, err := c.above.TakeStates(ctx, source, p, takenAt)
		if err != nil && !errors.Is(err, fault.ErrConflict) {
			c.Fatal(err)
		}
		if rapid.Bool().Draw(c.T, "unanswered") {
			continue
		}
		m = next
	}
}

// end completes replication and compares the ledgers.
func (c *climb) end() {
	ctx := context.Background()
	for c.due < len(c.booked) {
		c.book()
	}
	push(c.below, c.above, c.offer) // before and after, so that some hours are late upstream
	for _, s := range []*side{c.below, c.above} {
		if err := s.Fold(ctx, at(10*day)); err != nil {
			c.Fatal(err)
		}
	}
	push(c.below, c.above, c.offer)
	if err := c.above.Fold(ctx, at(10*day)); err != nil {
		c.Fatal(err)
	}
	if push(c.below, c.above, c.offer) != 0 {
		c.Fatal("replication is not complete")
	}
	for _, d := range []struct {
		what       string
		want, have []string
	}{
		{"days", c.below.usage("day", 0), c.above.usage("day", 0)},
		{"names", c.below.names(), c.above.names()},
		{"gaps", c.below.gaps(), c.above.gaps()},
		{"groups", c.below.groups(), c.above.groups()},
		{"guests", c.below.guests(), c.above.guests()},
	} {
		if diff := cmp.Diff(d.want, d.have); diff != "" {
			c.Fatalf("%s (-below +above):\n%s", d.what, diff)
		}
	}
	push(c.above, c.top, replica.Offer{Rows: 100})
	if err := c.top.Fold(ctx, at(10*day)); err != nil {
		c.Fatal(err)
	}
	push(c.above, c.top, replica.Offer{Rows: 100})
	if err := c.top.Fold(ctx, at(10*day)); err != nil {
		c.Fatal(err)
	}
	if diff := cmp.Diff(c.below.usage("day", 0), c.top.usage("day", 0)); diff != "" {
		c.Fatalf("days (-below +top):\n%s", diff)
	}
	if diff := cmp.Diff(c.below.guests(), c.top.guests()); diff != "" {
		c.Fatalf("guests (-below +top):\n%s", diff)
	}
	floor := max(c.below.floor("hour_floor"), c.above.floor("hour_floor"))
	if diff := cmp.Diff(c.below.usage("hour", floor), c.above.usage("hour", floor)); diff != "" {
		c.Fatalf("hours (-below +above):\n%s", diff)
	}
	if diff := cmp.Diff(c.below.connections(floor), c.above.connections(floor)); diff != "" {
		c.Fatalf("connections (-below +above):\n%s", diff)
	}
}

// pair returns a ledger with the nodes a and b, and its upstream ledger.
func pair(t *testing.T) (below, above *side) {
	t.Helper()
	for _, s := range []**side{&below, &above} {
		*s = &side{t: t, dsn: filepath.Join(t.TempDir(), "l.db")}
		(*s).open()
		t.Cleanup((*s).close)
	}
	for _, id := range []string{"a", "b"} {
		if err := below.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: "name-" + id}); err != nil {
			t.Fatal(err)
		}
	}
	return below, above
}

// use books ns of CPU in each of the minutes.
func (s *side) use(m *batch.Mark, node string, ns int64, minutes ...int64) {
	s.t.Helper()
	s.useWith(m, node, ns, func(*batch.Entry) {}, minutes...)
}

// useWith is use with a change of the entry.
func (s *side) useWith(m *batch.Mark, node string, ns int64, change func(*batch.Entry), minutes ...int64) {
	s.t.Helper()
	e := &batch.Entry{Node: node, Stream: batch.Stream{node[0]}, Number: m.Next + 1, Previous: m.Last, Hash: batch.HashOf(fmt.Append(nil, node, m.Next))}
	for _, at := range minutes {
		row := batch.Minute{Workload: 7, Minute: first + at}
		row.Usage.Put(usage.CPU, ns, usage.Measured)
		e.Minutes = append(e.Minutes, row)
	}
	change(e)
	results, err := s.Book(context.Background(), []*batch.Entry{e})
	if err != nil || results[0].Verdict != batch.Accepted {
		s.t.Fatal(results, err)
	}
	m.Next, m.Last = m.Next+1, e.Hash
}

// cpu returns the sum of a node's CPU in the minutes of the first day.
func (s *side) cpu(node string) (n int64) {
	s.t.Helper()
	lines := s.query("SELECT coalesce(sum(m.cpu), 0) + 1 AS n FROM minute_20100101 m JOIN workload w ON w.id = m.workload JOIN node n ON n.id = w.node WHERE n.node_id = $1", node)
	if _, err := fmt.Sscanf(lines[0], "n=%d", &n); err != nil {
		s.t.Fatal(err)
	}
	return n - 1
}

// sum returns the CPU time of all nodes in the minutes [from, to).
func (s *side) sum(from, to int64) string {
	s.t.Helper()
	a, err := s.Usage(context.Background(), query.Query{From: at(from), To: at(to), By: []query.Dimension{query.ByCluster}, Scope: query.Scope{All: true}})
	if err != nil || len(a.Groups) != 1 {
		s.t.Fatalf("%+v, %v", a, err)
	}
	return a.Groups[0].Usage.Sum[usage.CPU].String()
}

// TestWithinAbove checks that an upstream server leaves out the same rows of a guest.
func TestWithinAbove(t *testing.T) {
	below, above := pair(t)
	handovers := func(e *batch.Entry) {
		h := batch.TimedHandover{From: at(60), To: at(62)}
		h.Guest, h.Shares = "uuid", []power.Share{{Epoch: "e", N: 1, Active: 1}}
		if e.Node == "a" {
			h.Workload = workload.NewID("a", workload.VM, "vm")
			row := batch.Minute{Minute: first + 61}
			row.Workload, _ = workload.ShortIDOf(h.Workload)
			row.Usage.Put(usage.EnergyRest, 1, usage.Measured)
			e.Minutes = append(e.Minutes, row)
		}
		e.Handovers, e.Through = []batch.TimedHandover{h}, at(90)
	}
	var a, b batch.Mark
	below.useWith(&b, "b", 1, func(e *batch.Entry) { e.Through = at(63) }, 58, 59, 60, 61, 62)
	push(below, above, replica.Offer{Rows: 2})
	if got := above.sum(0, day); got != "5" {
		t.Errorf("before the server knows of a host: %s ns, want 5", got)
	}
	below.use(&a, "a", 10, 60)
	below.useWith(&b, "b", 1, handovers, 63)
	below.useWith(&a, "a", 10, handovers, 61)
	push(below, above, replica.Offer{Rows: 2})
	for _, when := range []string{"minutes", "hours", "days"} {
		for _, s := range []*side{below, above} {
			for want, span := range map[string][2]int64{"24": {0, day}, "20": {60, 62}, "2": {0, 60}} {
				if got := s.sum(span[0], span[1]); got != want {
					t.Errorf("%s: %s ns in minutes %v, want %s", when, got, span, want)
				}
			}
			if findings, err := s.Check(t.Context()); err != nil || slices.ContainsFunc(findings, func(f string) bool { return !strings.HasPrefix(f, "balance") }) {
				t.Errorf("%s: the check reports %q, %v", when, findings, err)
			}
			if err := s.Fold(t.Context(), at(map[string]int64{"minutes": 3 * 60, "hours": 3 * day}[when])); err != nil {
				t.Fatal(err)
			}
		}
		push(below, above, replica.Offer{Rows: 100})
	}
}

// TestNestedDayOfOlderSource checks that rows of a source that does not say which of them are within a
// host are nested by whole days, whichever comes first.
func TestNestedDayOfOlderSource(t *testing.T) {
	below, above := pair(t)
	send := func(nested bool) {
		t.Helper()
		m, err := above.StatesMark(t.Context(), source)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := below.page(m, replica.Offer{Rows: 100})
		p.Within = false
		if nested {
			p.Nodes = append(p.Nodes, replica.Node{Node: registry.Node{ID: "a", Cluster: "c"}}, replica.Node{Node: registry.Node{ID: "b", Cluster: "c"}})
			p.Workloads = append(p.Workloads, replica.Workload{Node: len(p.Nodes) - 2, Short: 7})
			p.Nestings = []replica.Nesting{{Node: len(p.Nodes) - 1, Host: len(p.Nodes) - 2, Workload: len(p.Workloads) - 1, Minute: first}}
		}
		if _, err := above.TakeStates(t.Context(), source, p, takenAt); err != nil {
			t.Fatal(err)
		}
	}
	var a, b batch.Mark
	below.use(&a, "a", 10, 0, day)
	below.use(&b, "b", 1, 1, 100, day)
	send(false)
	if got := above.sum(0, 2*day); got != "23" {
		t.Errorf("%s ns, want 23", got)
	}
	below.use(&a, "a", 10, 2)
	send(true)
	if got := above.sum(0, 2*day); got != "31" {
		t.Errorf("with a nested day: %s ns, want 31", got)
	}
	below.use(&b, "b", 1, 100, 200)
	send(false)
	if got := above.sum(0, 2*day); got != "31" {
		t.Errorf("with late rows of a nested day: %s ns, want 31", got)
	}
}

// TestOpenMinute checks that a minute is sent once it is over, and that nothing is lost by waiting.
func TestOpenMinute(t *testing.T) {
	below, above := pair(t)
	var a, b batch.Mark
	over := func(minute int64) { push(below, above, replica.Offer{Rows: 1, OpenMinute: first + minute}) }
	below.use(&a, "a", 1, 0)
	below.use(&a, "a", 2, 0, 1)
	below.use(&b, "b", 4, 0)
	over(1)
	if nodes, days := above.query("SELECT node_id FROM node"), above.query("SELECT day FROM kept"); len(nodes) != 2 || len(days) != 0 {
		t.Errorf("nodes %v and days %v above, want no rows of the revision of an open minute", nodes, days)
	}
	below.use(&a, "a", 8, 1)
	over(1)
	if a, b := above.cpu("a"), above.cpu("b"); a != 3 || b != 4 {
		t.Errorf("%d and %d ns, want the first minute's 3 and 4", a, b)
	}
	over(2)
	if got := above.cpu("a"); got != 13 {
		t.Errorf("%d ns, want 13", got)
	}
}

// TestRestoredWhileRunning checks that everything is sent again after the database of a running
// process was replaced by an older copy, although revisions continue.
func TestRestoredWhileRunning(t *testing.T) {
	below, above := pair(t)
	var a batch.Mark
	below.use(&a, "a", 1, 0)
	db := ledgertest.DB(t, below.dsn)
	var rev int64
	if err := db.QueryRow("SELECT rev FROM counter").Scan(&rev); err != nil {
		t.Fatal(err)
	}
	below.use(&a, "a", 2, 1)
	below.use(&a, "a", 4, 2)
	push(below, above, replica.Offer{Rows: 100})
	// Undo the last two transactions.
	for _, q := range []string{"DELETE FROM minute_20100101 WHERE minute > " + fmt.Sprint(first), fmt.Sprint("UPDATE counter SET rev = ", rev)} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(3) {
		below.use(&a, "a", 8, 1+i)
	}
	push(below, above, replica.Offer{Rows: 100})
	if got, want := above.cpu("a"), below.cpu("a"); got != want || want != 25 {
		t.Errorf("%d ns above, %d below, want 25", got, want)
	}
}

// TestForeign checks that a node's rows count once: from their first source, unless that one is
// silent.
func TestForeign(t *testing.T) {
	ctx := t.Context()
	below, above := pair(t)
	var a, own batch.Mark
	below.use(&a, "a", 1, 0)
	below.use(&batch.Mark{}, "b", 2, 0)
	if err := above.PutNode(ctx, registry.Node{ID: "b", Cluster: "c"}); err != nil {
		t.Fatal(err)
	}
	above.use(&own, "b", 16, 0)
	push(below, above, replica.Offer{Rows: 100})
	if a, b := above.cpu("a"), above.cpu("b"); a != 1 || b != 16 {
		t.Errorf("%d and %d ns, want the replicated rows of one and the other's own", a, b)
	}
	send := func(now time.Time) error { return sendAll(below, above, replica.Source{ID: "s2", Cluster: "c"}, now) }
	below.use(&a, "a", 4, 1)
	if err := send(takenAt.Add(time.Minute)); err != nil || above.cpu("a") != 1 {
		t.Errorf("%v, %d ns: taken from two sources", err, above.cpu("a"))
	}
	if lines, err := above.Audits(ctx, registry.AuditQuery{Limit: 10}); err != nil || len(lines) != 3 || lines[0].Action != "states.foreign" {
		t.Errorf("audit is %v, %v", lines, err)
	}
	below.use(&a, "a", 8, 2)
	if err := send(takenAt.Add(25 * time.Hour)); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("replication does not start over: %v", err)
	}
	if err := send(takenAt.Add(25 * time.Hour)); err != nil || above.cpu("a") != 13 {
		t.Errorf("%v, %d ns after a day without the first, want 13", err, above.cpu("a"))
	}
}

// TestForeignHours checks that the minutes of a node's new source replace the hours of its former
// one.
func TestForeignHours(t *testing.T) {
	below, above := pair(t)
	below.use(&batch.Mark{}, "a", 1, 60, 61)
	if err := below.Fold(t.Context(), at(2*day)); err != nil {
		t.Fatal(err)
	}
	push(below, above, replica.Offer{Finest: replica.Hour, Rows: 100})
	other, _ := pair(t)
	other.use(&batch.Mark{}, "a", 1, 61)
	now, own := takenAt.Add(25*time.Hour), replica.Source{ID: "s2", Cluster: "c"}
	if err := sendAll(other, above, own, now); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("replication does not start over: %v", err)
	}
	if err := sendAll(other, above, own, now); err != nil || above.cpu("a") != 1 {
		t.Errorf("%v, %d ns, want the minute's 1", err, above.cpu("a"))
	}
}

// sendAll sends everything as a source until a page is refused.
func sendAll(below, above *side, src replica.Source, now time.Time) error {
	ctx := context.Background()
	m, err := above.StatesMark(ctx, src)
	for err == nil {
		var p *replica.Page
		if p, err = below.States(ctx, m, replica.Offer{Rows: 100}); err == nil {
			if p.Empty() {
				return nil
			}
			m, err = above.TakeStates(ctx, src, p, now)
		}
	}
	return err
}

// TestForeignCluster checks that a source with rights in one cluster cannot take over nodes of
// another, even of a silent source, but can in its own.
func TestForeignCluster(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		ctx := t.Context()
		below, _ := pair(t)
		above := &side{t: t, dsn: dsn}
		above.open()
		t.Cleanup(above.close)
		var a batch.Mark
		below.use(&a, "a", 1, 0)
		if err := sendAll(below, above, source, at(0)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(above.PutSource(ctx, registry.Node{ID: source.ID, Cluster: "c"}), above.RevokeNode(ctx, source.ID, at(0))); err != nil {
			t.Fatal(err)
		}
		below.use(&a, "a", 4, 1)
		for _, cluster := range []string{"d", "c.west", "c-2", ""} {
			src := replica.Source{ID: "of " + cluster, Cluster: cluster}
			for _, now := range []time.Time{at(1), at(0).Add(25 * time.Hour)} {
				if err := sendAll(below, above, src, now); err != nil || above.cpu("a") != 1 {
					t.Errorf("cluster %q: %v, %d ns, want the former owner's 1", cluster, err, above.cpu("a"))
				}
			}
			if lines, err := above.Audits(ctx, registry.AuditQuery{Limit: 1}); err != nil || lines[0].Action != "states.foreign" || lines[0].Actor != src.ID || !strings.Contains(lines[0].Detail, "another cluster") {
				t.Errorf("cluster %q: audit is %v, %v", cluster, lines, err)
			}
		}
		if got := above.query("SELECT DISTINCT n.cluster, s.source_id FROM node n JOIN source s ON s.id = n.source"); !slices.Equal(got, []string{"cluster=c source_id=s1 "}) {
			t.Errorf("the nodes belong to %v", got)
		}
		own := replica.Source{ID: "s2", Cluster: "c"}
		if err := sendAll(below, above, own, at(2)); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("replication does not start over: %v", err)
		}
		if err := sendAll(below, above, own, at(2)); err != nil || above.cpu("a") != 5 {
			t.Errorf("%v, %d ns in its own cluster, want 5", err, above.cpu("a"))
		}
	})
}

// TestForeignHost checks that a source cannot nest its nodes, or add workloads, in a machine of
// another cluster, but can in one of its own cluster that another source sends.
func TestForeignHost(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		ctx := t.Context()
		below, _ := pair(t)
		above := &side{t: t, dsn: dsn}
		above.open()
		t.Cleanup(above.close)
		// Node a comes from another source; node own sends here itself.
		below.use(&batch.Mark{}, "a", 1, 0)
		if err := errors.Join(sendAll(below, above, source, at(0)), above.PutNode(ctx, registry.Node{ID: "own", Cluster: "c"})); err != nil {
			t.Fatal(err)
		}
		claim := func(src replica.Source, guest string) {
			t.Helper()
			p := &replica.Page{
				Nodes: []replica.Node{
					{Node: registry.Node{ID: guest + "-1"}, Host: replica.Host{Node: "a", Workload: 9, Since: at(0), Seen: at(0)}},
					{Node: registry.Node{ID: guest + "-2"}, Host: replica.Host{Node: "own", Workload: 9, Since: at(0), Seen: at(0)}},
					{Node: registry.Node{ID: "a"}}, {Node: registry.Node{ID: "own"}},
				},
				Workloads: []replica.Workload{{Node: 2, Short: 8}, {Node: 3, Short: 8}},
				Nestings:  []replica.Nesting{{Node: 0, Host: 2, Workload: 0, Minute: first}, {Node: 1, Host: 3, Workload: 1, Minute: first}},
			}
			if _, err := above.TakeStates(ctx, src, p, at(1)); err != nil {
				t.Fatal(err)
			}
		}
		forged := "SELECT n.node_id, w.short FROM workload w JOIN node n ON n.id = w.node WHERE w.short IN (8, 9)"
		claim(replica.Source{ID: "s2", Cluster: "d"}, "d")
		if got := append(above.guests(), above.query(forged)...); len(got) != 0 {
			t.Errorf("in another cluster's machines there are %v", got)
		}
		claim(replica.Source{ID: "s3", Cluster: "c"}, "c")
		if got := above.guests(); len(got) != 4 {
			t.Errorf("in its own cluster's machines there are %v, want both nodes, on a day and now", got)
		}
	})
}

// TestHeld checks that coarser rows replace finer ones upstream that the source lost when an older
// copy was restored.
func TestHeld(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		ctx := t.Context()
		below, above := pair(t)
		anew := func(dsn string) *side {
			s := &side{t: t, dsn: dsn}
			s.open()
			t.Cleanup(s.close)
			return s
		}
		// Each server in turn is between below and top, and does not know the previous servers.
		again, third, top, over := anew(dsn), anew(ledgertest.SQLite(t)), anew(ledgertest.SQLite(t)), anew(ledgertest.SQLite(t))
		const large = 1<<57 - 1
		var a batch.Mark
		below.use(&a, "a", 1, 60, 61)
		below.use(&a, "a", 2, 119)
		below.use(&batch.Mark{}, "b", large, 0, 1, 2, 59)
		rise := func(what string, between, top *side, o replica.Offer, rows int) {
			t.Helper()
			push(below, between, o)
			push(between, top, replica.Offer{Rows: rows})
			if a, b := top.cpu("a"), top.cpu("b"); a != 4 || b != 4*large {
				t.Errorf("%s: %d and %d ns on top, want 4 and %d", what, a, b, int64(4*large))
			}
		}
		minutes, hours := replica.Offer{Rows: 1}, replica.Offer{Finest: replica.Hour, Rows: 100}
		rise("minutes", above, top, minutes, 1)
		rise("minutes", above, over, minutes, 100)
		if err := below.Fold(ctx, at(2*day)); err != nil {
			t.Fatal(err)
		}
		rise("hours", again, top, hours, 1)
		rise("hours at once", again, over, hours, 100)
		rise("minutes in place of hours", again, top, minutes, 1)
		rise("hours in place of minutes", again, top, hours, 1)
		if err := errors.Join(below.Fold(ctx, at(10*day)), below.Retain(ctx, at(2000*day))); err != nil {
			t.Fatal(err)
		}
		rise("days", third, top, minutes, 1)
		if err := errors.Join(third.Fold(ctx, at(10*day)), third.Retain(ctx, at(20*day))); err != nil {
			t.Fatal(err)
		}
		rise("days among hours", third, over, minutes, 1)
	})
}

// TestSpill checks that an hour too large for one row of minutes is kept.
func TestSpill(t *testing.T) {
	below, above := pair(t)
	var a batch.Mark
	const large = 1<<57 - 1
	below.use(&a, "a", large, 0, 1, 2, 59)
	if err := below.Fold(t.Context(), at(2*day)); err != nil {
		t.Fatal(err)
	}
	hours := replica.Offer{Finest: replica.Hour, Rows: 100}
	push(below, above, hours)
	if got := above.cpu("a"); got != 4*large {
		t.Errorf("%d ns, want %d", got, int64(4*large))
	}
	if err := above.Fold(t.Context(), at(2*day)); err != nil {
		t.Fatal(err)
	}
	below.use(&a, "a", 1, 3)
	push(below, above, hours)
	if got := above.cpu("a"); got != 4*large+1 {
		t.Errorf("%d ns, want %d", got, int64(4*large+1))
	}
	// Minutes now replace the hour.
	push(below, above, replica.Offer{Rows: 1})
	if got := above.cpu("a"); got != 4*large+1 {
		t.Errorf("%d ns by minutes, want %d", got, int64(4*large+1))
	}
	if diff := cmp.Diff(below.usage("hour", 0), above.usage("hour", 0)); diff != "" {
		t.Errorf("hours (-below +above):\n%s", diff)
	}
}

// TestSource checks what the registry of servers below keeps.
func TestSource(t *testing.T) {
	ctx := t.Context()
	_, above := pair(t)
	n := registry.Node{ID: "s1", Cluster: "c", Name: "n", MachineID: "m", Boot: "b", At: at(0).UTC(), KeyHash: "key", Token: "token"}
	for _, n := range []registry.Node{n, n, {ID: "s2", Cluster: "c", MachineID: "m", At: at(1)}} {
		if err := above.PutSource(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := above.RevokeNode(ctx, "s2", at(2)); err != nil {
		t.Fatal(err)
	}
	got, err := above.Sources(ctx, "m")
	if diff := cmp.Diff([]registry.Node{n}, got); err != nil || diff != "" {
		t.Errorf("%v, sources (-want +got):\n%s", err, diff)
	}
	if ids, err := above.RevokedNodes(ctx); err != nil || !slices.Equal(ids, []string{"s2"}) {
		t.Errorf("revoked are %v, %v", ids, err)
	}
	one, err := above.Source(ctx, "s1")
	if diff := cmp.Diff(n, one); err != nil || diff != "" {
		t.Errorf("%v, source s1 (-want +got):\n%s", err, diff)
	}
	if one, err := above.Source(ctx, "s3"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown source: %+v, %v", one, err)
	}
}

// TestRevIndexes checks that the indexes on rev exist only with an upstream server.
func TestRevIndexes(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	for _, upstream := range []bool{false, true, true, false} {
		cfg := ledger.Default()
		cfg.Upstream = upstream
		l, err := ledger.Open(t.Context(), dsn, cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ledgertest.Node(t, l, "a")
		e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 1, ledgertest.Day.Unix()/60)
		if _, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil {
			t.Fatal(err)
		}
		var n, want int
		if upstream {
			want = 7 // minutes, hours and days, of workloads and of nodes, and connections
		}
		q := "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name LIKE '%_rev' AND tbl_name NOT IN ('node', 'workload', 'gap', 'shift')"
		if err := ledgertest.DB(t, dsn).QueryRowContext(t.Context(), q).Scan(&n); err != nil || n != want {
			t.Errorf("upstream %v: %d indexes, %v; want %d", upstream, n, err, want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFutureRows checks that rows of the future wait until their time.
func TestFutureRows(t *testing.T) {
	below, above := pair(t)
	var m batch.Mark
	below.use(&m, "a", 10, 0, 60)
	p, _ := below.page(replica.Mark{}, replica.Offer{Rows: 100})
	if _, err := above.TakeStates(t.Context(), source, p, at(-1)); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("a row that begins in 61 minutes: %v", err)
	} else if wait, _ := fault.RetryAfter(err); wait != time.Minute {
		t.Errorf("retry after %v", wait)
	}
	if _, err := above.TakeStates(t.Context(), source, p, at(0)); err != nil {
		t.Errorf("a row that begins in 60 minutes: %v", err)
	}
	if got := above.sum(0, day); got != "20" {
		t.Errorf("%s ns, want 20", got)
	}
}

// TestRestoredVersions: a server whose ledger was restored sees a change of a pod at another time than before. The
// servers above have its versions then, and count everything once.
func TestRestoredVersions(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		finest replica.Resolution
		change [2]int64 // when the label changes, first and after the ledger was restored: the version begins 10 minutes later
	}{{replica.Minute, [2]int64{20, 50}}, {replica.Minute, [2]int64{50, 20}}, {replica.Minute, [2]int64{20, 0}}, {replica.Minute, [2]int64{0, 50}}, {replica.Hour, [2]int64{20, 50}}, {replica.Hour, [2]int64{50, 20}}} {
		finest := c.finest
		below, above := pair(t)
		_, top := pair(t)
		id := workload.NewID("a", workload.Container, "y")
		short, _ := workload.ShortIDOf(id)
		var mark batch.Mark
		use := func(minute, ns int64) {
			t.Helper()
			below.useWith(&mark, "a", 0, func(e *batch.Entry) {
				row := batch.Minute{Workload: short, Minute: first + minute}
				row.Usage.Put(usage.CPU, ns, usage.Measured)
				row.Usage.Put(usage.NetworkRx, ns, usage.Measured)
				e.Connections = []batch.Connections{{Workload: short, Minute: row.Minute - row.Minute%batch.Quarter, Sketch: received(ns, 1)}}
				e.Minutes, e.Names, e.Through = []batch.Minute{row}, []batch.Name{{ID: id, Kind: workload.Container, Key: "y"}}, at(minute+1)
				e.Nodes = []batch.NodeMinute{{Minute: row.Minute, CPUs: 1}}
				e.Nodes[0].Whole[0] = ns
			})
		}
		label := func(minute int64, job string) {
			t.Helper()
			if err := below.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{{UID: "u", Namespace: "p", Name: "pod", Job: job, Containers: map[string]string{"y": "app"}}}, at(minute)); err != nil {
				t.Fatal(err)
			}
		}
		fold := func() {
			t.Helper()
			for _, s := range []*side{below, above, top} {
				if err := s.Fold(ctx, at(3*day)); err != nil {
					t.Fatal(err)
				}
			}
		}
		send := func(folded bool) {
			t.Helper()
			for range 2 { // hours are sent once they are folded
				push(below, above, replica.Offer{Finest: finest, Rows: 3})
				push(above, top, replica.Offer{Rows: 3})
				if folded {
					fold()
				}
			}
		}
		label(0, "j1")
		use(1, 1)
		below.copy(below.dsn, below.dsn+".copy")
		before := mark
		send(false)
		for _, restored := range []bool{false, true} {
			changed := c.change[0]
			if restored {
				below.copy(below.dsn+".copy", below.dsn)
				mark, changed = before, c.change[1]
			}
			for _, u := range [][2]int64{{15, 2}, {25, 4}, {35, 8}, {55, 16}, {70, 32}, {1450, 64}} {
				if changed > 0 && u[0] > changed && u[0] < changed+15 {
					label(changed, "j2")
				}
				use(u[0], u[1])
			}
			send(true)
			want := map[int64]map[string]string{0: {"j1": "127"}, 20: {"j1": "7", "j2": "120"}, 50: {"j1": "31", "j2": "96"}}[changed]
			for name, s := range map[string]*side{"below": below, "above": above, "top": top} {
				a, err := s.Usage(ctx, query.Query{From: at(0), To: at(3 * day), By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}})
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]string{}
				for i := range a.Groups {
					got[a.Groups[i].Keys[0]] = a.Groups[i].Usage.Sum[usage.CPU].String()
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%v, restored %t, %s (-want +got):\n%s", c, restored, name, diff)
				}
				for _, table := range []string{"day", "hour"} {
					if diff := cmp.Diff(below.usage(table, 0), s.usage(table, 0)); diff != "" {
						t.Errorf("%v, restored %t, %s: %s (-below +%[3]s):\n%s", c, restored, name, table, diff)
					}
				}
				if diff := cmp.Diff(below.names(), s.names()); diff != "" {
					t.Errorf("%v, restored %t, names of %s:\n%s", c, restored, name, diff)
				}
				if diff := cmp.Diff(below.connections(0), s.connections(0)); diff != "" {
					t.Errorf("%v, restored %t, connections of %s:\n%s", c, restored, name, diff)
				}
				if findings, err := s.Check(ctx); err != nil || len(findings) > 0 {
					t.Errorf("%v, restored %t, %s: %v, %v", c, restored, name, findings, err)
				}
			}
		}
	}
}

// TestRunsByHours checks that an upper server that gets hours only lists a run as running as long as it has rows
// in the newest hour of its node, which comes long after the mark of the node, and no longer.
func TestRunsByHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, above := pair(t)
		var m batch.Mark
		upTo := func(end int64, rows map[string][]int64) {
			t.Helper()
			time.Sleep(time.Until(at(end)))
			below.useWith(&m, "a", 1, func(e *batch.Entry) {
				for name, minutes := range rows {
					n := batch.Name{ID: workload.NewID("a", workload.Job, name), Kind: workload.Job, Key: name, Name: name, Job: name, Started: at(10)}
					e.Names = append(e.Names, n)
					for _, minute := range minutes {
						row := batch.Minute{Minute: first + minute}
						row.Workload, _ = workload.ShortIDOf(n.ID)
						row.Usage.Put(usage.CPU, 1, usage.Measured)
						e.Minutes = append(e.Minutes, row)
						e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: first + minute, Covered: time.Minute, CPUs: 1})
					}
				}
				e.Through = at(end)
			})
			if err := below.Fold(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			push(below, above, replica.Offer{Finest: replica.Hour, Rows: 100})
		}
		check := func(when string, want map[string]query.RunState) {
			t.Helper()
			list, err := above.Runs(t.Context(), query.RunQuery{Query: query.Query{From: at(0), To: time.Now(), Scope: query.Scope{All: true}}})
			got := map[string]query.RunState{}
			for _, r := range list {
				got[r.Job] = r.State
			}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %v, states (-want +got):\n%s", when, err, diff)
			}
		}
		upTo(70, map[string][]int64{"killed": {20, 59}, "goes on": {20, 59, 69}})
		check("in the second hour", map[string]query.RunState{"killed": query.Running, "goes on": query.Running})
		upTo(175, map[string][]int64{"goes on": {70, 119, 174}})
		check("in the third", map[string]query.RunState{"killed": query.EndUnknown, "goes on": query.Running})
		for _, folds := range []int64{130, 175} {
			if err := above.Fold(t.Context(), at(folds)); err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprint("folded at ", folds), map[string]query.RunState{"killed": query.EndUnknown, "goes on": query.Running})
		}
		time.Sleep(6 * time.Minute)
		check("without news", map[string]query.RunState{"killed": query.EndUnknown, "goes on": query.EndUnknown})
	})
}

// TestKubeRunsAbove checks that an upper server has the Jobs of Kubernetes of the lower one as runs, with the same figures, and with
// their ends once these are known.
func TestKubeRunsAbove(t *testing.T) {
	below, above := pair(t)
	lease := pod.Lease{Cluster: "c"}
	for _, node := range []string{"a", "b"} {
		uid := "uid-" + node
		var m batch.Mark
		below.useWith(&m, node, 1, func(e *batch.Entry) {
			n := batch.Name{ID: workload.NewID(node, workload.Pod, uid), Kind: workload.Pod, Key: uid}
			e.Names = append(e.Names, n)
			row := batch.Minute{Minute: first + 5}
			row.Workload, _ = workload.ShortIDOf(n.ID)
			row.Usage.Put(usage.CPU, 40, usage.Measured)
			e.Minutes = append(e.Minutes, row)
			e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: first + 5, Covered: time.Minute, CPUs: 1})
			e.Through = at(6)
		})
		if err := below.BookPods(t.Context(), lease, []pod.Pod{{UID: uid, Namespace: "shop", Name: "p-" + node, Job: "shop/job/j", Node: node, RunUID: "u", RunName: "j"}}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	compare := func(when string, want query.RunState) {
		t.Helper()
		push(below, above, replica.Offer{Finest: replica.Minute, Rows: 100})
		var lists [2][]query.Run
		for i, s := range []*side{below, above} {
			var err error
			if lists[i], err = s.Runs(t.Context(), query.RunQuery{Query: query.Query{From: at(0), To: time.Now(), Scope: query.Scope{All: true}}}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(lists[0], lists[1], cmp.Comparer(func(a, b unit.Sum) bool { return a == b })); diff != "" {
			t.Errorf("%s: runs (-below +above):\n%s", when, diff)
		}
		if l := lists[1]; len(l) != 1 || l[0].State != want || l[0].Nodes != 2 || l[0].Usage.Sum[usage.CPU].String() != "80" {
			t.Errorf("%s: %+v", when, l)
		}
	}
	compare("while it runs", query.EndUnknown)
	run := pod.Run{UID: "u", Namespace: "shop", Started: at(4), Ended: at(6), Exit: new(2)}
	if err := below.BookRuns(t.Context(), lease, []pod.Run{run}); err != nil {
		t.Fatal(err)
	}
	compare("after its end", query.Ended)
}

// TestReservedAbove checks that no list of an upper server has what pods reserve as workloads of their own, with names or
// pseudonyms, and that it stands beside what they use under one name.
func TestReservedAbove(t *testing.T) {
	for _, masked := range []bool{false, true} {
		below, above := pair(t)
		const uid = "3f0e0d5a-2f2c-4b8e-9d0a-5a1e4f6b7c8d"
		containerID, lease := strings.Repeat("d", 64), pod.Lease{Cluster: "c"}
		var m batch.Mark
		below.useWith(&m, "a", 1, func(e *batch.Entry) {
			n := batch.Name{ID: workload.NewID("a", workload.Container, containerID), Kind: workload.Container, Key: containerID}
			e.Names = append(e.Names, n)
			row := batch.Minute{Minute: first + 5}
			row.Workload, _ = workload.ShortIDOf(n.ID)
			row.Usage.Put(usage.CPU, 40, usage.Measured)
			e.Minutes = append(e.Minutes, row)
			e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: first + 5, Covered: time.Minute, CPUs: 1})
			e.Through = at(6)
		})
		p := pod.Pod{UID: uid, Namespace: "shop", Name: "web", Job: "shop/deployment/web", Node: "name-a", Containers: map[string]string{containerID: "app"}, Created: at(5), Scheduled: at(5),
			Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1000, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}
		if err := below.BookPods(t.Context(), lease, []pod.Pod{p}, at(5)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := below.PutReserved(t.Context(), lease, at(6), at(6), 0); err != nil {
			t.Fatal(err)
		}
		push(below, above, replica.Offer{Finest: replica.Minute, Masked: masked, Rows: 100})
		for _, s := range []*side{below, above} {
			q := query.Query{From: at(0), To: at(day), By: []query.Dimension{query.ByWorkload}, Where: map[query.Dimension][]string{query.ByKind: {"container"}}, Scope: query.Scope{All: true}}
			a, err := s.Usage(t.Context(), q)
			list, err2 := s.Workloads(t.Context(), q)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if len(list) != 1 || len(a.Groups) != 1 || a.Groups[0].Usage.Sum[usage.CPU].String() != "40" || a.Groups[0].Usage.Sum[usage.CPUReserved].String() == "0" {
				t.Errorf("masked %t: workloads %+v, groups %+v", masked, list, a.Groups)
			}
		}
	}
}

// TestVolumesAbove checks that an upper server has what volumes reserve once, also after the lower ledger was restored from a copy of
// before it had any, and that no list of nodes there has their pseudo-node.
func TestVolumesAbove(t *testing.T) {
	below, above := pair(t)
	lease := pod.Lease{Cluster: "c"}
	v := pod.Volume{UID: "u", Name: "pv-1", Namespace: "shop", Claim: "data", Job: "shop/checkout", Bytes: 10, Created: at(0), Labels: map[string]string{pod.LabelClaim: "data"}}
	round := func(when string) {
		t.Helper()
		book := func(minute int64) {
			t.Helper()
			if err := below.BookVolumes(t.Context(), lease, []pod.Volume{v}, at(minute)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := below.PutReserved(t.Context(), lease, at(minute+1), at(minute+1), 0); err != nil {
				t.Fatal(err)
			}
		}
		book(0)
		book(60)
		released := v
		released.Namespace, released.Claim, released.Job, released.Labels = "", "", "", nil
		if err := below.BookVolumes(t.Context(), lease, []pod.Volume{released}, at(75)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := below.PutReserved(t.Context(), lease, at(120), at(120), 0); err != nil {
			t.Fatal(err)
		}
		push(below, above, replica.Offer{Finest: replica.Minute, Rows: 10})
		a, err := above.Usage(t.Context(), query.Query{From: at(0), To: at(day), By: []query.Dimension{query.ByCluster, query.ByNode, query.ByKind, query.ByNamespace, query.ByJob, query.ByLabel + pod.LabelClaim}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range a.Groups {
			got = append(got, strings.Join(g.Keys, ",")+"="+g.Usage.Sum[usage.StorageReserved].String())
		}
		slices.Sort(got)
		if want := []string{"c,c volumes,volume,,pv-1,=27000", "c,c volumes,volume,shop,shop/checkout,data=45000"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		nodes, err := above.Nodes(t.Context(), query.Scope{All: true})
		lower, err2 := above.DownstreamServers(t.Context(), query.Scope{All: true})
		if err := errors.Join(err, err2); err != nil || slices.ContainsFunc(nodes, func(n query.Node) bool { return strings.Contains(n.Name, "volumes") }) ||
			slices.ContainsFunc(lower, func(s query.Source) bool { return s.Nodes != len(nodes) }) {
			t.Errorf("%s: nodes %+v, sources %+v, %v", when, nodes, lower, err)
		}
		if findings, err := above.Check(t.Context()); err != nil || len(findings) > 0 {
			t.Errorf("%s: check: %v, %v", when, findings, err)
		}
	}
	old := filepath.Join(t.TempDir(), "old.db")
	below.copy(below.dsn, old)
	round("first")
	below.copy(old, below.dsn)
	round("restored")
}
