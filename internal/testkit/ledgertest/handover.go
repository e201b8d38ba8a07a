package ledgertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A handoverTest is a ledger with a host, its guest and other nodes, and the shares that
// they report.
type handoverTest struct {
	t     *testing.T
	l     *ledger.Ledger
	db    reader
	marks map[string]batch.Mark
	bare  bool // entries have no rows of their own
}

const guestUUID = "00112233-4455-6677-8899-aabbccddeeff"

func newHandoverTest(t *testing.T, dsn string) *handoverTest {
	s := &handoverTest{t: t, l: Open(t, dsn), db: reader{t, DB(t, dsn)}, marks: map[string]batch.Mark{}}
	for _, id := range []string{"host", "guest", "other"} {
		Node(t, s.l, id)
	}
	return s
}

// entry returns the next entry of a node, with a window that ends at the given time.
func (h *handoverTest) entry(node string, end time.Time, hs ...batch.TimedHandover) *batch.Entry {
	m := h.marks[node]
	e := &batch.Entry{Node: node, Stream: batch.Stream{node[0]}, Number: m.Next + 1, Previous: m.Last, Through: end, Handovers: hs}
	e.Hash = batch.HashOf(fmt.Append(nil, node, e.Number))
	h.marks[node] = batch.Mark{Next: m.Next + 1, Last: e.Hash}
	if h.bare {
		return e
	}
	// A host has what it says it gave; every node uses something.
	minute := minuteOf(end.Add(-1))
	e.Nodes = []batch.NodeMinute{{Minute: minute, Covered: time.Second, CPUs: 1}}
	add := func(short workload.ShortID, uj int64) {
		row := batch.Minute{Workload: short, Minute: minute, Usage: usage.Usage{Covered: time.Second}}
		row.Usage.Put(usage.EnergyRest, uj, usage.Apportioned)
		e.Minutes = append(e.Minutes, row)
		e.Nodes[0].Whole[slices.Index(usage.Wholes[:], usage.EnergyRest)] += uj
	}
	add(7, 1)
	for i := range hs {
		if short, ok := workload.ShortIDOf(hs[i].Workload); ok {
			for j := range hs[i].Shares {
				add(short, hs[i].Shares[j].Energy())
			}
		}
	}
	return e
}

func (h *handoverTest) book(es ...*batch.Entry) {
	h.t.Helper()
	book(h.t, h.l, batch.Accepted, es...)
}

// vm returns the workload of the guest on a host.
func vm(host string) workload.ID { return workload.NewID(host, workload.VM, guestUUID) }

// handover returns a handover of the ten seconds before a time. as is the guest's workload
// on the reporting host, "" if the guest reports. The n-th share has 7 uJ active and 3 uJ
// idle energy per number, plus off.
func handover(end time.Time, as workload.ID, epoch string, off int64, ns ...int64) batch.TimedHandover {
	h := batch.TimedHandover{From: end.Add(-10 * time.Second), To: end}
	h.Guest, h.Workload = guestUUID, as
	if as != "" {
		h.Name = "vm"
	}
	for _, n := range ns {
		h.Shares = append(h.Shares, power.Share{Epoch: epoch, N: n, Active: 7*n + off, Idle: 3 * n})
	}
	return h
}

// nested returns in which node a node is nested now, and on which days rows of it are.
func (h *handoverTest) nested(node string) (in string, days []int64) {
	h.t.Helper()
	nodes, err := h.l.Nodes(h.t.Context(), query.Scope{All: true})
	if err != nil {
		h.t.Fatal(err)
	}
	i := slices.IndexFunc(nodes, func(n query.Node) bool { return n.ID == node })
	if n := nodes[i].Nested; n != nil {
		in = n.Host
	}
	for _, day := range h.db.keptDays() {
		if h.db.number("SELECT count(*) FROM "+table("node_", day)+" m JOIN node n ON n.id = m.node & 1099511627775 WHERE m.node > 1099511627775 AND m.covered_ms > 0 AND n.node_id = $1", node) > 0 {
			days = append(days, (day-minuteOf(Day))/dayMinutes)
		}
	}
	return in, days
}

func (h *handoverTest) expect(when, in string, days ...int64) {
	h.t.Helper()
	if got, on := h.nested("guest"); got != in || !slices.Equal(on, days) {
		h.t.Errorf("%s: the guest is nested in %q, on days %v; want %q, %v", when, got, on, in, days)
	}
}

// vms returns the comparison of shares over a month.
func (h *handoverTest) vms() (lines []string) {
	h.t.Helper()
	list, err := h.l.VMs(h.t.Context(), Day, Day.AddDate(0, 1, 0), query.Scope{All: true})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, v := range list {
		last := ""
		if !v.Last.IsZero() {
			last = v.Last.Sub(Day).String()
		}
		lines = append(lines, fmt.Sprintf("%s on %s, by %s: %d compared, %d differ by %d; %d at %s", v.Name, v.HostName, v.NodeName, v.Compared, v.Differing, v.Largest, v.N, last))
	}
	return lines
}

func (h *handoverTest) compare(when string, want ...string) {
	h.t.Helper()
	if d := cmp.Diff(want, h.vms()); d != "" {
		h.t.Errorf("%s (-want +got):\n%s", when, d)
	}
}

// testHandovers: shares of a host and a guest are compared once, whichever reports first;
// only an equal share makes a node a guest.
func testHandovers(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	at := func(d time.Duration) time.Time { return Day.Add(d) }
	s.expect("at first", "")
	s.compare("at first")

	// First the host, then the guest; then both in one transaction.
	s.book(s.entry("host", at(10*time.Second), handover(at(10*time.Second), vm("host"), "e", 0, 1, 2, 3)))
	s.compare("of a host alone", "vm on name-host, by : 0 compared, 0 differ by 0; 0 at ")
	s.expect("of a host alone", "")
	s.book(s.entry("guest", at(11*time.Second), handover(at(11*time.Second), "", "e", 0, 3)))
	s.compare("equal", "vm on name-host, by name-guest: 1 compared, 0 differ by 0; 3 at 11s")
	s.expect("equal", "host", 0)
	s.book(s.entry("guest", at(21*time.Second), handover(at(21*time.Second), "", "e", 0, 6)),
		s.entry("host", at(20*time.Second), handover(at(20*time.Second), vm("host"), "e", 0, 4, 5, 6)))
	s.compare("guest first", "vm on name-host, by name-guest: 2 compared, 0 differ by 0; 6 at 21s")

	// Repeats in another stream and in the same one change nothing.
	again := s.entry("guest", at(31*time.Second), handover(at(31*time.Second), "", "e", 0, 6))
	s.book(again)
	book(t, s.l, batch.Duplicate, again)
	s.book(s.entry("host", at(20*time.Second), handover(at(20*time.Second), vm("host"), "e", 0, 4, 5, 6)))
	s.compare("again", "vm on name-host, by name-guest: 2 compared, 0 differ by 0; 6 at 21s")

	// Numbers that only one side has are not compared.
	s.book(s.entry("guest", at(41*time.Second), handover(at(41*time.Second), "", "e", 0, 7)))
	s.compare("of another number", "vm on name-host, by name-guest: 2 compared, 0 differ by 0; 6 at 21s")
	// Windows of both that were merged during an outage: two shares of the guest.
	s.book(s.entry("host", at(60*time.Second), handover(at(60*time.Second), vm("host"), "e", 0, 8, 9, 10)),
		s.entry("guest", at(61*time.Second), handover(at(61*time.Second), "", "e", 4, 8, 10)))
	s.compare("differing", "vm on name-host, by name-guest: 4 compared, 2 differ by 4; 10 at 1m1s")

	// The host reports for the next day, the guest for the previous one: the guest's day
	// counts. And an epoch begins within a window.
	mixed := handover(at(24*time.Hour+5*time.Second), vm("host"), "e", 0, 11)
	mixed.Shares = append(mixed.Shares, handover(at(0), "", "f", 0, 1, 2).Shares...)
	s.book(s.entry("host", at(24*time.Hour+5*time.Second), mixed), s.entry("guest", at(24*time.Hour), handover(at(24*time.Hour), "", "f", 0, 2)))
	s.expect("at midnight", "host", 0)
	s.compare("at midnight", "vm on name-host, by name-guest: 5 compared, 2 differ by 4; 2 at 24h0m0s")
	s.book(s.entry("guest", at(24*time.Hour+10*time.Second), handover(at(24*time.Hour+10*time.Second), "", "f", 0, 3)))
	s.expect("before the host reports", "host", 0, 1)

	// A range without reports of hosts has no virtual machines.
	list, err := s.l.VMs(t.Context(), Day.AddDate(0, 1, 0), Day.AddDate(0, 2, 0), query.Scope{All: true})
	if err != nil || len(list) > 0 {
		t.Errorf("virtual machines of another month: %v, %v", list, err)
	}
	for _, scope := range []query.Scope{{}, {Clusters: []string{"x"}}, {Projects: []string{"p"}}} {
		if list, err = s.l.VMs(t.Context(), Day, Day.AddDate(0, 1, 0), scope); err != nil || len(list) > 0 {
			t.Errorf("virtual machines seen by %+v: %v, %v", scope, list, err)
		}
	}
}

// testForged: a node that only claims to be a guest is none, and no node can be nested in
// itself.
func testForged(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	at := func(seconds int) time.Time { return Day.Add(time.Duration(seconds) * time.Second) }
	s.book(s.entry("host", at(10), handover(at(10), vm("host"), "secret", 0, 1, 2, 3)))
	for name, h := range map[string]batch.TimedHandover{
		"a guessed epoch":              handover(at(20), "", "guessed", 0, 1, 2, 3),
		"another number":               handover(at(20), "", "secret", 0, 4),
		"another amount":               handover(at(20), "", "secret", -1, 3),
		"no share":                     handover(at(20), "", "secret", 0),
		"the report of a host":         handover(at(20), vm("guest"), "own", 0, 1),
		"a window that ends too early": {From: at(20), To: at(10), Handover: handover(at(20), "", "secret", 0, 2).Handover},
		"a very long epoch":            handover(at(20), "", strings.Repeat("e", 10_000), 0, 1),
	} {
		if name == "another amount" {
			// A difference is reported as such, and the first report counts.
			s.book(s.entry("guest", at(20), h), s.entry("guest", at(21), handover(at(21), "", "secret", 0, 3)))
		} else {
			s.book(s.entry("guest", at(20), h))
		}
		s.expect(name, "")
	}
	// A machine that reports both sides, and another one that knows the epoch but is nested
	// in the first.
	s.book(s.entry("guest", at(30), handover(at(30), vm("guest"), "own", 0, 1, 2), handover(at(30), "", "own", 0, 2)))
	s.expect("a guest of its own", "")
	if n := s.db.number("SELECT count(*) FROM reconciled WHERE node = host"); n > 0 {
		t.Errorf("%d comparisons of a machine with itself", n)
	}
	// Equal shares of nodes that cannot be host and guest: of two clusters, or of which one is a
	// machine's jobs.
	for name, change := range map[string]func(host, guest *registry.Node){
		"two clusters":    func(_, g *registry.Node) { g.Cluster = "d" },
		"jobs as a host":  func(h, _ *registry.Node) { h.MachineID = registry.JobsMachineID("m") },
		"jobs as a guest": func(_, g *registry.Node) { g.MachineID = registry.JobsMachineID("m") },
	} {
		put := func(change func(host, guest *registry.Node)) {
			nodes := [2]registry.Node{{ID: "host", Cluster: "c", At: Day}, {ID: "guest", Cluster: "c", At: Day}}
			change(&nodes[0], &nodes[1])
			for _, n := range nodes {
				if err := s.l.PutNode(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(change)
		s.book(s.entry("host", at(35), handover(at(35), vm("host"), name, 0, 1)), s.entry("guest", at(35), handover(at(35), "", name, 0, 1)))
		s.book(s.entry("guest", at(36), handover(at(36), "", name, 0, 2)), s.entry("host", at(36), handover(at(36), vm("host"), name, 0, 2)))
		s.expect(name, "")
		put(func(_, _ *registry.Node) {})
	}
	s.book(s.entry("guest", at(40), handover(at(40), "", "secret", 0, 2)))
	s.expect("the truth", "host", 0)
	s.book(s.entry("guest", at(50), handover(at(50), vm("guest"), "back", 0, 1)), s.entry("host", at(50), handover(at(50), "", "back", 0, 1)))
	if in, days := s.nested("host"); in != "" || len(days) > 0 {
		t.Errorf("the host is nested in %q, on days %v, which is nested in it", in, days)
	}
	s.book(s.entry("other", at(60), handover(at(60), vm("other"), "o", 0, 1)), s.entry("host", at(60), handover(at(60), "", "o", 0, 1)))
	if in, _ := s.nested("host"); in != "other" {
		t.Errorf("the host is nested in %q, want other", in)
	}
	s.book(s.entry("guest", at(70), handover(at(70), vm("guest"), "round", 0, 1)), s.entry("other", at(70), handover(at(70), "", "round", 0, 1)))
	if in, _ := s.nested("other"); in != "" {
		t.Errorf("other is nested in %q, which is nested in it through the host", in)
	}
}

// testNestedEnds: a node is a guest as long as it reports shares, some of which are equal.
func testNestedEnds(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	at := func(d time.Duration) time.Time { return Day.Add(d) }
	equal := func(d time.Duration, host string, n int64) {
		s.book(s.entry(host, at(d), handover(at(d), vm(host), "of "+host, 0, n)), s.entry("guest", at(d), handover(at(d), "", "of "+host, 0, n)))
	}
	equal(time.Hour, "host", 1)
	s.book(s.entry("guest", at(2*time.Hour)))
	s.expect("for an hour", "host", 0)
	s.book(s.entry("guest", at(2*time.Hour+time.Second)))
	s.expect("after an hour", "", 0)
	s.book(s.entry("guest", at(25*time.Hour)))
	s.expect("the day after", "", 0)

	equal(49*time.Hour, "host", 2)
	s.expect("again, of the same epoch", "host", 0, 1, 2)
	// It reports shares that the host has not reported yet.
	for d := 50 * time.Hour; d <= 97*time.Hour; d += time.Hour {
		s.book(s.entry("guest", at(d), handover(at(d), "", "of host", 0, int64(d/time.Second))))
	}
	s.expect("without confirmation", "host", 0, 1, 2)
	s.book(s.entry("guest", at(98*time.Hour), handover(at(98*time.Hour), "", "of host", 0, 5)), s.entry("guest", at(99*time.Hour), handover(at(99*time.Hour), "", "of host", 0, 6)))
	s.expect("after two days without confirmation", "", 0, 1, 2)

	equal(100*time.Hour, "host", 7)
	equal(101*time.Hour, "other", 8)
	s.expect("elsewhere", "other", 0, 1, 2, 3, 4)
	nodes, err := s.l.Nodes(t.Context(), query.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.ID == "guest" && (n.Nested == nil || !n.Nested.Since.Equal(at(101*time.Hour-10*time.Second)) || !n.Nested.Seen.Equal(at(101*time.Hour)) || n.Nested.HostName != "name-other") {
			t.Errorf("nested %+v", n.Nested)
		}
	}
	// A caller who cannot see the host sees no nesting of a guest in its own cluster.
	guest := registry.Node{ID: "guest", Cluster: "d", Name: "name-guest", MachineID: "machine-guest", Boot: "boot", At: Day}
	if err := s.l.PutNode(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		clusters []string
		nested   bool
	}{{[]string{"d"}, false}, {[]string{"c", "d"}, true}} {
		nodes, err := s.l.Nodes(t.Context(), query.Scope{Clusters: c.clusters})
		i := slices.IndexFunc(nodes, func(n query.Node) bool { return n.ID == "guest" })
		if err != nil || i < 0 || (nodes[i].Nested != nil) != c.nested {
			t.Errorf("with access to clusters %v: %+v, %v", c.clusters, nodes, err)
		}
	}
	for clusters, want := range map[string]string{"d": "", "c": "3 , 1 , ", "c d": "3 guest, 1 guest, "} {
		list, err := s.l.VMs(t.Context(), Day, Day.AddDate(0, 1, 0), query.Scope{Clusters: strings.Fields(clusters)})
		var got strings.Builder
		for _, v := range list {
			fmt.Fprintf(&got, "%d %s, ", v.Compared, v.Node)
		}
		if err != nil || got.String() != want {
			t.Errorf("with access to clusters %s: guests %q, want %q; %v", clusters, got.String(), want, err)
		}
	}
	// A late report from its former host changes only the past, and nothing in another cluster.
	s.book(s.entry("host", at(60*time.Hour), handover(at(60*time.Hour), vm("host"), "of host", 0, 70*3600)))
	s.expect("late", "other", 0, 1, 2, 3, 4)

	// Shares are dropped after two days by the ledger's own clock; their results stay.
	booked := Day.AddDate(0, 6, 0)
	for _, table := range []string{"share_part", "closing"} {
		if _, err := s.db.db.ExecContext(t.Context(), "UPDATE "+table+" SET booked_ns = booked_ns - $1", time.Since(booked).Nanoseconds()); err != nil {
			t.Fatal(err)
		}
	}
	if err := Try(t, func() error { return s.l.Retain(t.Context(), booked.Add(49*time.Hour)) }); err != nil {
		t.Fatal(err)
	}
	if parts, closing := s.db.number("SELECT count(*) FROM share_part"), s.db.number("SELECT count(*) FROM closing"); parts+closing > 0 {
		t.Errorf("%d and %d shares are kept", parts, closing)
	}
	s.expect("after shares were dropped", "other", 0, 1, 2, 3, 4)
	if n := s.db.number("SELECT sum(compared) FROM reconciled"); n != 4 {
		t.Errorf("%d shares were compared, want 4", n)
	}
	if err := s.l.Retain(t.Context(), Day.AddDate(3, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if n := s.db.number("SELECT count(*) FROM reconciled") + s.db.number("SELECT count(*) FROM share_series"); n > 0 {
		t.Errorf("%d rows about shares after three years", n)
	}
	s.expect("after three years", "other", 0, 1, 2, 3, 4)
}

// used returns the use of a node's workload in a minute, with a name that has a namespace
// and a job.
func (h *handoverTest) used(node, name, job, namespace string, minute int64, joules int64) (batch.Name, batch.Minute) {
	n := batch.Name{ID: workload.NewID(node, workload.VM, name), Kind: workload.VM, Name: name, Job: job, Labels: map[string]string{"io.kubernetes.pod.namespace": namespace}}
	if node == "host" && name == "vm" {
		n.ID = vm(node)
	}
	row := batch.Minute{Minute: minute}
	row.Workload, _ = workload.ShortIDOf(n.ID)
	row.Usage.Covered = time.Minute
	row.Usage.Put(usage.CPU, joules, usage.Measured)
	row.Usage.Put(usage.EnergyRest, joules*1e6, usage.Apportioned)
	row.Usage.Put(usage.EnergyIdle, joules*1e5, usage.Apportioned)
	row.Usage.Put(usage.EnergyError, joules*1e4, usage.Apportioned)
	return n, row
}

// testGuests: the use inside a guest is included in its host's figures, and counted only
// there, whichever rows an answer is read from.
func testGuests(t *testing.T, dsn string) {
	ctx := t.Context()
	s := newHandoverTest(t, dsn)
	s.bare = true
	m := minuteOf(Day)
	use := func(node, name, job, namespace string, joules int64, h batch.TimedHandover) {
		e := s.entry(node, h.To, h)
		if len(h.Shares) == 0 {
			e.Handovers = nil
		}
		for _, minute := range []int64{m, m + dayMinutes} {
			n, row := s.used(node, name, job, namespace, minute, joules)
			e.Names, e.Minutes = []batch.Name{n}, append(e.Minutes, row)
			w := batch.NodeMinute{Minute: minute, Covered: time.Minute, CPUs: 2}
			for i, r := range usage.Wholes {
				w.Whole[i] = row.Usage.Amount[r]
			}
			e.Nodes = append(e.Nodes, w)
		}
		s.book(e)
	}
	end := Day.Add(24*time.Hour + time.Minute) // the second day
	use("host", "vm", "", "", 100, handover(end, vm("host"), "e", 0, 1))
	use("host", "web", "build", "ns", 1000, batch.TimedHandover{})
	use("guest", "pod", "build", "ns", 40, handover(end, "", "e", 0, 1))
	use("other", "pod", "build", "other", 10_000, batch.TimedHandover{})
	ask := func(q query.Query) *query.Answer {
		t.Helper()
		q.From, q.To = Day, Day.Add(48*time.Hour)
		if !q.Scope.All && q.Scope.Clusters == nil {
			q.Scope.All = true
		}
		a, err := s.l.Usage(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	lines := func(groups []query.Group) (out string) {
		for _, g := range groups {
			e, _ := g.Usage.Energy()
			out += fmt.Sprintf("%s=%s on %d; ", strings.Join(g.Keys, "+"), e.Decimal(usage.EnergyRest.Detail().Unit), g.Nodes)
		}
		return out
	}
	check := func(when string) {
		t.Helper()
		for _, c := range []struct {
			q                   query.Query
			want, guests, whole string
			count               int
		}{
			// On the first day the guest is a separate machine, on the second it is nested.
			{query.Query{By: []query.Dimension{query.ByCluster}}, "c=22240 on 3; ", "", "22240", 1},
			{query.Query{By: []query.Dimension{query.ByNamespace}}, "other=20000 on 1; ns=2040 on 2; =200 on 1; ", "", "22240", 1},
			{query.Query{By: []query.Dimension{query.ByNamespace}, Nested: "only"}, "ns=40 on 1; ", "", "40", 1},
			{query.Query{By: []query.Dimension{query.ByNamespace}, Nested: "also"}, "other=20000 on 1; ns=2040 on 2; =200 on 1; ", "ns=40 on 1; ", "22240", 1},
			{query.Query{By: []query.Dimension{query.ByNode}}, "name-other=20000 on 1; name-host=2200 on 1; name-guest=40 on 1; ", "name-guest=40 on 1; ", "22240", 1},
			{query.Query{By: []query.Dimension{query.ByNode}, Where: map[query.Dimension][]string{query.ByNode: {"name-guest"}}}, "name-guest=80 on 1; ", "", "0", 0},
			{query.Query{By: []query.Dimension{query.ByJob}, Where: map[query.Dimension][]string{query.ByNode: {"guest"}}}, "build=80 on 1; ", "", "0", 0},
			{query.Query{By: []query.Dimension{query.ByJob}, Where: map[query.Dimension][]string{query.ByNode: {"guest", "host"}}}, "build=2040 on 2; vm=200 on 1; ", "", "0", 1},
			{query.Query{By: []query.Dimension{query.ByUser}, Where: map[query.Dimension][]string{query.ByNamespace: {"ns"}}}, "=2040 on 2; ", "", "0", 1},
			{query.Query{By: []query.Dimension{query.ByUser}, Where: map[query.Dimension][]string{query.ByNamespace: {"ns"}}, Nested: "only"}, "=40 on 1; ", "", "0", 1},
			{query.Query{By: []query.Dimension{query.ByCluster}, Scope: query.Scope{Clusters: []string{"c"}}}, "c=22240 on 3; ", "", "22240", 1},
		} {
			a := ask(c.q)
			whole, _ := a.Capacity.Energy()
			if got := lines(a.Groups); got != c.want || lines(a.NestedGroups) != c.guests || whole.Decimal(usage.EnergyRest.Detail().Unit) != c.whole || a.NestedNodes != c.count {
				t.Errorf("%s: %+v: %s(%s) of %s without %d, want %s(%s) of %s without %d", when, c.q, got, lines(a.NestedGroups),
					whole.Decimal(usage.EnergyRest.Detail().Unit), a.NestedNodes, c.want, c.guests, c.whole, c.count)
			}
		}
		findings, err := s.l.Check(ctx)
		if err != nil || len(findings) > 0 {
			t.Errorf("%s: the check reports %q, %v", when, findings, err)
		}
	}
	check("minutes")
	list, err := s.l.VMs(ctx, Day, Day.Add(48*time.Hour), query.Scope{All: true})
	if err != nil || len(list) != 1 {
		t.Fatalf("virtual machines %v, %v", list, err)
	}
	u := &list[0].Usage
	if energy, q := u.Energy(); list[0].Workload != vm("host") || energy.String() != "200000000" || q != usage.Apportioned ||
		u.Sum[usage.EnergyIdle].String() != "20000000" || u.Sum[usage.EnergyError].String() != "2000000" {
		t.Errorf("virtual machine %+v", list[0])
	}
	fold(t, s.l, Day.Add(25*time.Hour))
	check("hours, and the first day")
	fold(t, s.l, Day.Add(60*time.Hour))
	check("days")
	if n := s.db.number("SELECT count(*) FROM stale_day"); n != 0 {
		t.Errorf("%d stale days", n)
	}

	// Shares of the first minute arrive late: from then on the guest's rows do not count, although they
	// are folded.
	late := handover(Day.Add(time.Minute), vm("host"), "e", 0, 9)
	late.Opened = late.Shares[0]
	s.book(s.entry("host", late.To, late), s.entry("guest", late.To, handover(late.To, "", "e", 0, 9)))
	for _, when := range []string{"late", "late and folded"} {
		if a := ask(query.Query{By: []query.Dimension{query.ByNamespace}}); lines(a.Groups) != "other=20000 on 1; ns=2000 on 1; =200 on 1; " {
			t.Errorf("%s: %s", when, lines(a.Groups))
		}
		fold(t, s.l, Day.Add(60*time.Hour))
	}
	// Without access to the host the guest is shown as a separate machine.
	if err := s.l.PutNode(ctx, registry.Node{ID: "host", Cluster: "hosts", Name: "name-host", MachineID: "m", Boot: "b", At: Day}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []query.Query{
		{By: []query.Dimension{query.ByNamespace}, Scope: query.Scope{Clusters: []string{"c"}}},
		{By: []query.Dimension{query.ByNamespace}, Where: map[query.Dimension][]string{query.ByCluster: {"c"}}},
	} {
		if a := ask(q); lines(a.Groups) != "other=20000 on 1; ns=80 on 1; " || a.NestedNodes != 0 {
			t.Errorf("without the host's cluster: %s, %d left out", lines(a.Groups), a.NestedNodes)
		}
	}
	if _, err := s.l.Usage(ctx, query.Query{By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}, Nested: "some"}); err == nil {
		t.Error("nested=some was accepted")
	}
}
