package replica_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// day is a midnight, as a minute.
const day = 29_000_160

var (
	source = replica.Source{ID: "s1", Cluster: "c"}
	later  = at(day + 5*1440)
	all    = replica.Offer{Rows: 1000}
)

func at(minute int64) time.Time { return time.Unix(60*minute, 0).UTC() }

// open opens a ledger that sends its rows.
func open(t *testing.T) (*ledger.Ledger, string) {
	t.Helper()
	cfg, dsn := ledger.Default(), ledgertest.SQLite(t)
	cfg.Upstream = true
	return ledgertest.OpenWith(t, dsn, cfg), dsn
}

// numbers returns the integers of a query, in their order.
func numbers(t *testing.T, dsn, query string) (list []int64) {
	t.Helper()
	rows, err := ledgertest.DB(t, dsn).QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	return list
}

// take takes a page at the mark, with faults before, and returns the error. It takes the page again if it
// was taken, and the fault was in reading the mark.
func take(t *testing.T, l *ledger.Ledger, src replica.Source, p replica.Page, now time.Time) error {
	t.Helper()
	return ledgertest.Try(t, func() error { return takeOnce(t, l, src, p, now) })
}

func takeOnce(t *testing.T, l *ledger.Ledger, src replica.Source, p replica.Page, now time.Time) (err error) {
	t.Helper()
	if p.From, err = l.StatesMark(t.Context(), src); err == nil {
		_, err = l.TakeStates(t.Context(), src, &p, now)
	}
	return err
}

func mustTake(t *testing.T, l *ledger.Ledger, src replica.Source, p replica.Page) {
	t.Helper()
	if err := take(t, l, src, p, later); err != nil {
		t.Fatal(err)
	}
}

// states returns the next page, with faults before.
func states(t *testing.T, l *ledger.Ledger, m replica.Mark, o replica.Offer) (p *replica.Page) {
	t.Helper()
	err := ledgertest.Try(t, func() (err error) {
		if p, err = l.States(t.Context(), m, o); err != nil && p != nil {
			t.Errorf("a page with the error %v", err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// job returns a workload of a node of the page.
func job(node int, id, key string) replica.Workload {
	n := batch.Name{ID: workload.NewID(id, workload.Job, key), Kind: workload.Job, Key: key, Name: "name", Job: "j", User: "u", Project: "p",
		Started: at(day), Labels: map[string]string{"app": key, "tier": "t"}}
	w := replica.Workload{Node: node, Name: &n, Named: at(day + 1), Namespace: "ns", Pod: "pod", Container: "c"}
	w.Short, _ = workload.ShortIDOf(n.ID)
	return w
}

func used(cpu int64) (u usage.Usage) {
	u.Put(usage.CPU, cpu, usage.Measured)
	u.Covered = time.Minute
	return u
}

// full returns a page with everything, in the order in which a ledger sends it.
func full() replica.Page {
	node := func(id string) replica.Node {
		return replica.Node{
			Node: registry.Node{ID: id, Cluster: "c", Name: "name-" + id, MachineID: "m", Boot: "b", At: at(day)},
			Pool: "pool", CPUs: 4, CPUMinute: day, Revoked: at(day + 9), Through: at(day + 10),
		}
	}
	host, guest, other := node("host"), node("guest"), node("other")
	host.Cluster = "c.west"
	vm := job(0, "host", "vm")
	guest.Host = replica.Host{Node: "host", Workload: vm.Short, Since: at(day + 1), Seen: at(day + 2)}
	row := func(v replica.Resolution, minute int64, w, within int, cpu int64) replica.Row {
		return replica.Row{Resolution: v, Minute: minute, Workload: w, Within: within, Usage: used(cpu)}
	}
	whole := func(v replica.Resolution, minute int64, node, within int, cpu int64) replica.NodeRow {
		n := batch.NodeMinute{Minute: minute, CPUs: 2, Violations: 1, Lost: 3, Covered: time.Minute, Total: used(cpu)}
		n.Total.Covered = 0
		n.Whole[0], n.Skew[0] = cpu, -cpu
		return replica.NodeRow{Resolution: v, Node: node, Within: within, NodeMinute: n}
	}
	return replica.Page{
		Within: true,
		Nodes:  []replica.Node{host, guest, other},
		Workloads: []replica.Workload{
			vm, job(0, "host", "x"), job(1, "guest", "y"), job(2, "other", "z"),
		},
		Rows: []replica.Row{
			row(replica.Minute, day, 0, 0, 1), row(replica.Minute, day, 2, 1, 2), row(replica.Minute, day+1, 1, 0, 3),
			row(replica.Hour, day+120, 3, 0, 1<<59), row(replica.Day, day+1440, 3, 0, 5), row(replica.Minute, day+2*1440, 2, 3, 6),
		},
		NodeRows: []replica.NodeRow{
			whole(replica.Minute, day, 0, 0, 1), whole(replica.Minute, day, 1, 1, 2), whole(replica.Hour, day+60, 2, 0, 1<<58),
			whole(replica.Day, day+1440, 2, 0, 4), whole(replica.Minute, day+2*1440, 1, 3, 9),
		},
		Gaps: []replica.Gap{
			{Node: 0, Gap: usage.Gap{From: at(day), To: at(day + 1), Reason: usage.Rebooted, Detail: "d"}, Booked: at(day + 2)},
			{Node: 2, Gap: usage.Gap{From: at(day + 3), To: at(day + 4), Reason: usage.Forgotten, Detail: "e"}, Booked: at(day + 5)},
		},
		Shifts: []replica.Shift{
			{Node: 1, Shift: batch.Shift{Boot: "b", At: at(day + 3), By: time.Second, From: at(day)}},
			{Node: 2, Shift: batch.Shift{Boot: "b", At: at(day + 4), By: -time.Second, From: at(day + 1)}},
		},
		Nestings: []replica.Nesting{
			{Node: 1, Host: 0, Workload: 0, Minute: day}, {Node: 1, Host: 2, Workload: 3, Minute: day + 1440}, {Node: 2, Host: -1, Workload: -1, Minute: day + 1440},
		},
		Connections: []replica.Connections{{Minute: day, Workload: 0, Sketch: edges(9)}, {Minute: day, Workload: 1, Sketch: edges(8, 7)}, {Minute: day + 60, Workload: 0, Sketch: &connection.Sketch{}}},
	}
}

// edges returns a sketch of edges with bytes received.
func edges(bytes ...int64) *connection.Sketch {
	s := &connection.Sketch{Missed: 5}
	for i, n := range bytes {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 443, Protocol: 6}, connection.Traffic{RxBytes: n})
	}
	return s
}

// fold folds all hours of a ledger: then their connections are due.
func fold(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if err := l.Fold(t.Context(), later); err != nil {
		t.Fatal(err)
	}
}

// equal compares what two pages hold.
func equal(t *testing.T, what string, want, got replica.Page) {
	t.Helper()
	want.From, want.To, got.From, got.To = replica.Mark{}, "", replica.Mark{}, ""
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A server sends what it took, whatever the size of its pages.
func TestPages(t *testing.T) {
	l, _ := open(t)
	want := full()
	mustTake(t, l, source, want)
	fold(t, l)
	p := states(t, l, replica.Mark{}, all)
	equal(t, "one page", want, *p)
	if end := states(t, l, replica.Mark{Position: p.To}, all); !end.Empty() || end.To != p.To {
		t.Errorf("after the last page: %+v", end)
	}
	for _, limit := range []int{0, 1, 3, 7, 20} {
		// Pages of this size bring the same to a server as one page.
		above, _ := open(t)
		var m replica.Mark
		records, pages := 0, 0
		for {
			p := states(t, l, m, replica.Offer{Rows: limit})
			if p.Empty() {
				break
			}
			n := len(p.Rows) + len(p.NodeRows) + len(p.Gaps) + len(p.Shifts) + len(p.Nestings) + len(p.Connections)
			for _, w := range p.Workloads {
				if w.Name != nil {
					n++
				} else if w.Namespace+w.Pod+w.Container != "" {
					t.Errorf("a workload that did not change: %+v", w)
				}
			}
			if n > max(limit, 1) {
				t.Errorf("a page of at most %d records has %d", limit, n)
			}
			records, pages = records+n, pages+1
			if pages > 100 {
				t.Fatalf("pages of %d records have no end", limit)
			}
			var err error
			if m, err = above.TakeStates(t.Context(), source, p, later); err != nil {
				t.Fatal(err)
			}
		}
		// Nodes are records too, and have their own.
		if want := 4 + 6 + 5 + 2 + 2 + 3 + 3; records != want || pages < (want+3)/max(limit, 1) {
			t.Errorf("pages of %d records: %d records without nodes in %d pages, want %d", limit, records, pages, want)
		}
		fold(t, above)
		if diff := cmp.Diff(lines(want), lines(*states(t, above, replica.Mark{}, all))); diff != "" {
			t.Errorf("what pages of %d records brought (-want +got):\n%s", limit, diff)
		}
	}
}

// lines describes what a page holds, whatever the order.
func lines(p replica.Page) (list []string) {
	node := func(i int) string {
		if i < 0 {
			return "none"
		}
		return p.Nodes[i].ID
	}
	add := func(args ...any) { list = append(list, fmt.Sprintf("%+v", args)) }
	for _, n := range p.Nodes {
		add(n)
	}
	for _, w := range p.Workloads {
		add(node(w.Node), w.Short, *w.Name, w.Named, w.Namespace, w.Pod, w.Container)
	}
	for _, r := range p.Rows {
		add(r.Resolution, r.Minute, p.Workloads[r.Workload].Short, node(r.Within-1), r.Usage)
	}
	for _, r := range p.NodeRows {
		add(r.Resolution, node(r.Node), node(r.Within-1), r.NodeMinute)
	}
	for _, g := range p.Gaps {
		add(node(g.Node), g.Gap, g.Booked)
	}
	for _, s := range p.Shifts {
		add(node(s.Node), s.Shift)
	}
	for _, n := range p.Nestings {
		var short workload.ShortID
		if n.Workload >= 0 {
			short = p.Workloads[n.Workload].Short
		}
		add(node(n.Node), node(n.Host), short, n.Minute)
	}
	for _, c := range p.Connections {
		add(c.Minute, p.Workloads[c.Workload].Short, *c.Sketch)
	}
	slices.Sort(list)
	return list
}

// Rows of the page of another source's nodes are left out, and all else that it says of them.
func TestForeignPage(t *testing.T) {
	l, dsn := open(t)
	first := full()
	mustTake(t, l, source, first)
	fold(t, l)
	count := func() (n []int64) {
		for _, table := range []string{"node", "workload", "gap", "shift", "within_day", "minute_20250220", "node_minute_20250220", "hour", "day", "workload_label"} {
			n = append(n, numbers(t, dsn, "SELECT count(*) FROM "+table)...)
		}
		return append(n, numbers(t, dsn, "SELECT sum(rev) FROM workload UNION ALL SELECT sum(rev) FROM node UNION ALL SELECT sum(rev) FROM connections UNION ALL SELECT sum(cpu) FROM minute_20250220")...)
	}
	if at(day).Format("20060102") != "20250220" {
		t.Fatal(at(day))
	}
	before := count()
	for i, src := range []replica.Source{{ID: "s2", Cluster: "c"}, {ID: "s3", Cluster: "d"}} {
		second := full()
		for i := range second.Gaps {
			second.Gaps[i].From = at(day + 20)
		}
		for i := range second.Shifts {
			second.Shifts[i].By = time.Hour
		}
		for i := range second.Rows {
			second.Rows[i].Usage.Amount[usage.CPU]++
		}
		mustTake(t, l, src, second)
		mustTake(t, l, src, second)
		if now := count(); !slices.Equal(now, before) {
			t.Errorf("source %s has changed %v to %v", src.ID, before, now)
		}
		lines, err := l.Audits(t.Context(), registry.AuditQuery{Limit: 100})
		if err != nil || len(lines) != 3*(i+1) || lines[0].Action != "states.foreign" || lines[0].Actor != src.ID || !lines[0].At.Equal(later) {
			t.Errorf("audit %v, %v", lines, err)
		}
		if want := []string{"another source already sends rows of this node; rows from this server are ignored", "the node is in another cluster; its rows from this server are ignored"}[i]; lines[0].Detail != want {
			t.Errorf("audit %v, want %q", lines[0], want)
		}
		if m, err := l.StatesMark(t.Context(), src); err != nil || m.Sequence < 2 {
			t.Errorf("mark %+v, %v", m, err)
		}
	}
	p := states(t, l, replica.Mark{}, all)
	equal(t, "after the pages of others", first, *p)
}

// A source that was silent for more than a day, or is revoked, loses its nodes to another of the same
// cluster, which then sends everything.
func TestMovedNode(t *testing.T) {
	page := func(ids ...string) replica.Page {
		p := replica.Page{To: "x", Within: true}
		for i, id := range ids {
			p.Nodes = append(p.Nodes, replica.Node{Node: registry.Node{ID: id}})
			p.NodeRows = append(p.NodeRows, replica.NodeRow{Resolution: replica.Hour, Node: i, NodeMinute: batch.NodeMinute{Minute: day + 60, Covered: time.Minute}})
		}
		return p
	}
	for name, c := range map[string]struct {
		after   time.Duration
		cluster string
		revoked bool
		moves   bool
	}{
		"a day": {24 * time.Hour, "c", false, false}, "more": {24*time.Hour + 1, "c", false, true}, "revoked": {time.Second, "c", true, true},
		"another cluster": {100 * time.Hour, "d", true, false}, "a part of the cluster": {100 * time.Hour, "c.west", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, dsn := open(t)
			if err := takeOnce(t, l, source, page("a", "b"), later); err != nil {
				t.Fatal(err)
			}
			if c.revoked {
				if err := errors.Join(l.PutSource(t.Context(), registry.Node{ID: "s1", Cluster: "c"}), l.RevokeNode(t.Context(), "s1", later)); err != nil {
					t.Fatal(err)
				}
			}
			src := replica.Source{ID: "s2", Cluster: c.cluster}
			err := takeOnce(t, l, src, page("b", "own"), later.Add(c.after))
			if errors.Is(err, fault.ErrConflict) != c.moves || err != nil && !c.moves {
				t.Errorf("the page of the other source: %v", err)
			}
			m, err := l.StatesMark(t.Context(), src)
			owner := numbers(t, dsn, "SELECT source FROM node ORDER BY node_id")
			coarse := numbers(t, dsn, "SELECT coarse FROM source ORDER BY id")
			ownRows := numbers(t, dsn, "SELECT count(*) FROM node_minute_20250220 m JOIN node n ON n.id = m.node WHERE n.node_id = 'own'")[0]
			lines, err2 := l.Audits(t.Context(), registry.AuditQuery{Limit: 10})
			switch {
			case err != nil || err2 != nil || m.Sequence != 1 || len(lines) != 1:
				t.Errorf("mark %+v, audit %v, %v, %v", m, lines, err, err2)
			case c.moves && (m.Position != "" || !slices.Equal(owner, []int64{1, 2, 2}) || ownRows != 0 || !slices.Equal(coarse, []int64{day + 120, day + 120}) || lines[0].Action != "states.node-moved"):
				t.Errorf("mark %+v, owners %v, %d rows, coarse until %v, audit %v", m, owner, ownRows, coarse, lines)
			case !c.moves && (m.Position != "x" || !slices.Equal(owner, []int64{1, 1, 2}) || ownRows != 1 || lines[0].Action != "states.foreign"):
				t.Errorf("mark %+v, owners %v, %d rows, audit %v", m, owner, ownRows, lines)
			}
		})
	}
}

// A step that fails while a node moves leaves it where it was.
func TestMovedNodeFaults(t *testing.T) {
	l, dsn := open(t)
	mustTake(t, l, source, full())
	if err := take(t, l, replica.Source{ID: "s2", Cluster: "c"}, full(), later.Add(25*time.Hour)); err != nil && !errors.Is(err, fault.ErrConflict) {
		t.Fatal(err)
	}
	if got := numbers(t, dsn, "SELECT DISTINCT source FROM node"); !slices.Equal(got, []int64{2}) {
		t.Errorf("sources of nodes: %v", got)
	}
}

// A node that was enrolled here is not another server's, and a node that is in no cluster yet is in that of
// its source.
func TestOwnNode(t *testing.T) {
	l, dsn := open(t)
	ledgertest.Node(t, l, "here")
	vm := workload.ShortID(9)
	guest := func(id, host string) replica.Page {
		return replica.Page{Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: id}, Host: replica.Host{Node: host, Workload: vm, Since: at(day), Seen: at(day)}}}}
	}
	mustTake(t, l, source, guest("a", "unknown")) // creates the host
	mustTake(t, l, replica.Source{ID: "s2", Cluster: "c"}, guest("b", "unknown"))
	mustTake(t, l, replica.Source{ID: "s3", Cluster: "d"}, guest("x", "unknown"))
	mustTake(t, l, replica.Source{ID: "s3", Cluster: "d"}, guest("y", "here"))
	mustTake(t, l, replica.Source{ID: "s2", Cluster: "c"}, guest("z", "here"))
	mustTake(t, l, source, replica.Page{Nodes: []replica.Node{{Node: registry.Node{ID: "here"}}}})
	hosts := "SELECT coalesce(h.node_id = 'unknown', 0) + 2 * coalesce(h.node_id = 'here', 0) + 4 * (w.short IS 9) FROM node n LEFT JOIN node h ON h.id = n.host LEFT JOIN workload w ON w.id = n.host_workload ORDER BY n.node_id"
	if got := numbers(t, dsn, hosts); !slices.Equal(got, []int64{5, 5, 0, 0, 0, 0, 6}) {
		t.Errorf("hosts of a, b, here, unknown, x, y and z: %v", got)
	}
	if got := numbers(t, dsn, "SELECT source FROM node ORDER BY node_id"); !slices.Equal(got, []int64{1, 2, 0, 1, 3, 3, 2}) {
		t.Errorf("sources of a, b, here, unknown, x, y and z: %v", got)
	}
	if lines, err := l.Audits(t.Context(), registry.AuditQuery{Limit: 10}); err != nil || len(lines) != 1 || lines[0].Object != "here" || lines[0].Action != "states.foreign" {
		t.Errorf("audit %v, %v", lines, err)
	}
}

// Rows are within a node that this source may name: its own, or one of its cluster. Within another, they
// are within a node that is not known.
func TestRowsWithin(t *testing.T) {
	l, dsn := open(t)
	if err := errors.Join(l.PutNode(t.Context(), registry.Node{ID: "near", Cluster: "c"}), l.PutNode(t.Context(), registry.Node{ID: "far", Cluster: "d"})); err != nil {
		t.Fatal(err)
	}
	mustTake(t, l, source, replica.Page{Nodes: []replica.Node{{Node: registry.Node{ID: "own"}}, {Node: registry.Node{ID: "guest"}}}})
	db := ledgertest.DB(t, dsn)
	for id, n := range map[string]int64{"last": schema.EndWithin - 1, "beyond": schema.EndWithin} {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO node (id, node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES ($1, $2, 'c', '', '', '', 0, 0)", n, id); err != nil {
			t.Fatal(err)
		}
	}
	p := replica.Page{Within: true, Workloads: []replica.Workload{{Node: 1, Short: 7}}}
	for _, id := range []string{"own", "guest", "near", "far", "last", "beyond"} {
		p.Nodes = append(p.Nodes, replica.Node{Node: registry.Node{ID: id}})
	}
	for i := range p.Nodes {
		p.Rows = append(p.Rows, replica.Row{Resolution: replica.Minute, Minute: day + int64(i), Within: i + 1, Usage: used(1)})
		p.NodeRows = append(p.NodeRows, replica.NodeRow{Resolution: replica.Minute, Node: 1, Within: i + 1, NodeMinute: batch.NodeMinute{Minute: day + int64(i), Covered: time.Minute}})
	}
	p.NodeRows = append(p.NodeRows, replica.NodeRow{Resolution: replica.Minute, Node: 1, NodeMinute: batch.NodeMinute{Minute: day + 6, Covered: time.Minute}})
	p.Nestings = []replica.Nesting{{Node: 1, Host: 2, Workload: -1, Minute: day}, {Node: 1, Host: -1, Workload: 0, Minute: day + 1440}}
	mustTake(t, l, source, p)
	id := map[string]int64{}
	for _, name := range []string{"own", "guest", "near", "far", "last", "beyond"} {
		id[name] = numbers(t, dsn, "SELECT id FROM node WHERE node_id = '"+name+"'")[0]
	}
	want := []int64{id["own"], id["guest"], id["near"], id["guest"], id["last"], id["guest"]}
	for table, key := range map[string]string{"minute_20250220": "workload", "node_minute_20250220": "node"} {
		got := numbers(t, dsn, "SELECT "+schema.WithinOf(key)+" FROM "+table+" ORDER BY minute")
		if key == "node" {
			if got[6] != 0 {
				t.Errorf("a row of no other node is within %d", got[6])
			}
			got = got[:6]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: rows are within %v, want %v", table, got, want)
		}
	}
	if got := numbers(t, dsn, "SELECT host FROM within_day ORDER BY minute"); !slices.Equal(got, []int64{id["near"], id["guest"]}) {
		t.Errorf("nested within %v, want %d, also without a workload, and %d without a host", got, id["near"], id["guest"])
	}
	if got := numbers(t, dsn, "SELECT sum(workload) + sum(whole) FROM within_day"); got[0] != 0 {
		t.Errorf("workloads of hosts: %v", got)
	}
	// No key can name a node whose id is too large.
	if _, err := db.ExecContext(t.Context(), "UPDATE node SET source = 1 WHERE node_id = 'beyond'"); err != nil {
		t.Fatal(err)
	}
	mustTake(t, l, source, replica.Page{Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: "beyond"}}, {Node: registry.Node{ID: "far"}}},
		NodeRows: []replica.NodeRow{{Resolution: replica.Minute, Within: 2, NodeMinute: batch.NodeMinute{Minute: day + 10, Covered: time.Minute}}}})
	if got := numbers(t, dsn, fmt.Sprint("SELECT node FROM node_minute_20250220 WHERE minute = ", day+10)); !slices.Equal(got, []int64{schema.EndWithin}) {
		t.Errorf("the key of a row of node %d is %v", schema.EndWithin, got)
	}
	// A host that is not known here is not known above; one without a workload is.
	sent := states(t, l, replica.Mark{}, all)
	for _, n := range sent.Nestings {
		host := ""
		if n.Host >= 0 {
			host = sent.Nodes[n.Host].ID
		}
		if want := map[int64]string{day: "near"}[n.Minute]; host != want || n.Workload != -1 || sent.Nodes[n.Node].ID != "guest" {
			t.Errorf("nesting %+v within %q, want %q", n, host, want)
		}
	}
	if len(sent.Nestings) != 2 {
		t.Errorf("nestings %v", sent.Nestings)
	}
}

// A node that moves to another cluster or pool makes the days of its former groups stale, and no other
// page does.
func TestMovedCluster(t *testing.T) {
	l, dsn := open(t)
	send := func(cluster, pool string) []int64 {
		t.Helper()
		mustTake(t, l, source, replica.Page{Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: "a", Cluster: cluster}, Pool: pool}}})
		return numbers(t, dsn, "SELECT minute FROM stale_day ORDER BY minute")
	}
	send("c.west", "p")
	if _, err := ledgertest.DB(t, dsn).ExecContext(t.Context(), `INSERT INTO group_day (minute, cluster, namespace, job, username, project, kind, pool) VALUES
		(1440, 'c.west', '', '', '', '', '', 'p'), (2880, 'c.west', '', '', '', '', '', 'q'), (4320, 'c', '', '', '', '', '', 'q'), (5760, 'd', '', '', '', '', '', '')`); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cluster, pool string
		want          []int64
	}{{"c.west", "p", nil}, {"c.west", "q", []int64{1440}}, {"c.west", "q", []int64{1440}}, {"x", "q", []int64{1440, 2880}}, {"c", "q", []int64{1440, 2880}}, {"c", "", []int64{1440, 2880, 4320}}} {
		if got := send(c.cluster, c.pool); !slices.Equal(got, c.want) {
			t.Errorf("in cluster %s and pool %s: stale days %v, want %v", c.cluster, c.pool, got, c.want)
		}
	}
}

// Rows that are finer than those kept here are refused, and change nothing; the mark says so. A page that
// cannot be taken ever, or not yet, has an error of its kind.
func TestRefusedPages(t *testing.T) {
	l, dsn := open(t)
	ctx := t.Context()
	if _, err := ledgertest.DB(t, dsn).ExecContext(ctx, fmt.Sprintf("UPDATE counter SET minute_floor = %d, hour_floor = %d", day+1440, day)); err != nil {
		t.Fatal(err)
	}
	rows := func(v replica.Resolution, minute int64) (usages, nodes replica.Page) {
		usages = replica.Page{To: "x", Nodes: []replica.Node{{Node: registry.Node{ID: "a"}}}, Workloads: []replica.Workload{{Short: 7}}, Rows: []replica.Row{{Resolution: v, Minute: minute, Usage: used(1)}}}
		nodes = replica.Page{To: "x", Nodes: []replica.Node{{Node: registry.Node{ID: "a"}}}, NodeRows: []replica.NodeRow{{Resolution: v, NodeMinute: batch.NodeMinute{Minute: minute, Covered: time.Minute}}}}
		return usages, nodes
	}
	for _, c := range []struct {
		v      replica.Resolution
		minute int64
		kind   error
	}{
		{replica.Minute, day + 1439, fault.ErrConflict}, {replica.Minute, day + 1440, nil}, {replica.Hour, day - 60, fault.ErrConflict}, {replica.Hour, day, nil},
		{replica.Day, day - 1440, nil}, {replica.Hour, day + 1, fault.ErrInvalid},
		{replica.Minute, day + 5*1440 + 60, nil}, {replica.Minute, day + 5*1440 + 61, fault.ErrUnavailable},
	} {
		usages, nodes := rows(c.v, c.minute)
		for what, p := range map[string]replica.Page{"use": usages, "nodes": nodes} {
			before, err := l.StatesMark(ctx, source)
			if err != nil || before.MinuteFloor != day+1440 || before.HourFloor != day {
				t.Fatal(before, err)
			}
			p.From = before
			m, err := l.TakeStates(ctx, source, &p, later)
			switch now, err2 := l.StatesMark(ctx, source); {
			case err2 != nil:
				t.Error(err2)
			case c.kind == nil:
				if err != nil || m != now || now.Sequence != before.Sequence+1 || now.Position != "x" {
					t.Errorf("level %d at minute %d of %s: %v, mark %+v, %+v", c.v, c.minute-day, what, err, m, now)
				}
			case !errors.Is(err, c.kind) || now != before || c.kind == fault.ErrConflict && m != now:
				t.Errorf("level %d at minute %d of %s: %v, mark %+v after %+v", c.v, c.minute-day, what, err, now, before)
			}
			if wait, ok := fault.RetryAfter(err); ok != (c.kind == fault.ErrUnavailable) || ok && wait != time.Minute {
				t.Errorf("retry %t after %v", ok, wait)
			}
		}
	}
	// Minutes are kept longer than hours.
	if _, err := ledgertest.DB(t, dsn).ExecContext(ctx, fmt.Sprintf("UPDATE counter SET minute_floor = %d, hour_floor = %d", day-1440, day)); err != nil {
		t.Fatal(err)
	}
	usages, _ := rows(replica.Hour, day-60)
	if err := take(t, l, source, usages, later); err != nil {
		t.Errorf("an hour of which minutes are kept: %v", err)
	}
	// A page that does not continue the mark.
	m, err := l.StatesMark(ctx, source)
	for name, from := range map[string]replica.Mark{"sequence": {Sequence: m.Sequence - 1, Position: m.Position}, "position": {Sequence: m.Sequence, Position: "y"}} {
		p := usages
		p.From = from
		if got, err2 := l.TakeStates(ctx, source, &p, later); err != nil || got != m || !errors.Is(err2, fault.ErrConflict) {
			t.Errorf("a page at another %s: %+v, %v, %v", name, got, err, err2)
		}
	}
	if m, err := l.StatesMark(ctx, replica.Source{ID: "new"}); err != nil || m.Sequence != 0 || m.Position != "" || m.MinuteFloor != day-1440 {
		t.Errorf("the mark of a source that has sent nothing: %+v, %v", m, err)
	}
}

// Rows that either server no longer keeps are sent as the next coarser ones, of each time only one level.
func TestFloors(t *testing.T) {
	l, dsn := open(t)
	ledgertest.Node(t, l, "a")
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 7, 1, day+1, day+1440, day+2*1440, day+3*1440, day+3*1440+61)
	for _, m := range e.Minutes {
		e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: m.Minute, Covered: time.Minute})
	}
	if results, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	if err := l.Fold(t.Context(), later.Add(24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		here, there [2]int64 // floors of minutes and hours, in days
		finest      replica.Resolution
		want        string
	}{
		{[2]int64{}, [2]int64{}, replica.Minute, "0:1 0:1440 0:2880 0:4320 0:4381"},
		{[2]int64{2, 0}, [2]int64{}, replica.Minute, "0:2880 0:4320 0:4381 1:0 1:1440"},
		{[2]int64{1, 0}, [2]int64{3, 1}, replica.Minute, "0:4320 0:4381 1:1440 1:2880 2:0"},
		{[2]int64{3, 2}, [2]int64{}, replica.Minute, "0:4320 0:4381 1:2880 2:0 2:1440"},
		{[2]int64{1, 1}, [2]int64{}, replica.Hour, "1:1440 1:2880 1:4320 1:4380 2:0"},
		{[2]int64{1, 2}, [2]int64{}, replica.Minute, "0:1440 0:2880 0:4320 0:4381 2:0"},
	} {
		minute := func(days int64) int64 {
			if days == 0 {
				return 0
			}
			return day + 1440*days
		}
		if _, err := ledgertest.DB(t, dsn).ExecContext(t.Context(), fmt.Sprintf("UPDATE counter SET minute_floor = %d, hour_floor = %d", minute(c.here[0]), minute(c.here[1]))); err != nil {
			t.Fatal(err)
		}
		p := states(t, l, replica.Mark{MinuteFloor: minute(c.there[0]), HourFloor: minute(c.there[1])}, replica.Offer{Finest: c.finest, Rows: 1000})
		var rows, nodes []string
		for _, r := range p.Rows {
			rows = append(rows, fmt.Sprintf("%d:%d", r.Resolution, r.Minute-day))
		}
		for _, r := range p.NodeRows {
			nodes = append(nodes, fmt.Sprintf("%d:%d", r.Resolution, r.Minute-day))
		}
		slices.Sort(rows)
		slices.Sort(nodes)
		if want := "[" + c.want + "]"; fmt.Sprint(rows) != want || fmt.Sprint(nodes) != want {
			t.Errorf("floors %v here and %v there, finest %d: rows %v and %v, want %s", c.here, c.there, c.finest, rows, nodes, want)
		}
	}
}

// Changes since the first one of a minute that is not over wait, also if it is of another day.
func TestHoldBack(t *testing.T) {
	l, _ := open(t)
	ledgertest.Node(t, l, "a")
	mark := batch.Mark{Next: 1}
	book := func(ofNode bool, minutes ...int64) {
		t.Helper()
		e := ledgertest.Entry("a", batch.Stream{1}, mark, 7, 1, minutes...)
		if ofNode {
			e.Nodes, e.Minutes = []batch.NodeMinute{{Minute: minutes[0], Covered: time.Minute}}, nil
		}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		if results, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || results[0].Err != nil {
			t.Fatal(results, err)
		}
	}
	book(false, day-1440)
	book(false, day+1439)
	book(true, day+1440)
	book(false, day+3*1440)
	book(false, day-1439)
	for open, want := range map[int64]int{day - 1440: 0, day - 1439: 0, day: 1, day + 1439: 1, day + 1440: 2, day + 1441: 3, day + 2*1440: 3, day + 3*1440: 3, day + 3*1440 + 1: 5, 0: 5} {
		p := states(t, l, replica.Mark{}, replica.Offer{Rows: 100, OpenMinute: open})
		if got := len(p.Rows) + len(p.NodeRows); got != want && !(open == day-1439 && got == 1) {
			t.Errorf("before minute %d: %d rows, want %d", open-day, got, want)
		}
	}
	// Whole hours are over, or they are not folded.
	if p := states(t, l, replica.Mark{}, replica.Offer{Rows: 100, OpenMinute: day - 1440, Finest: replica.Hour}); len(p.Nodes) != 1 {
		t.Errorf("a page of hours has %d nodes", len(p.Nodes))
	}
}

// A page can have more workloads and nodes than a query lists.
func TestManyWorkloads(t *testing.T) {
	l, _ := open(t)
	const n = 1100
	p := replica.Page{Within: true}
	for i := range n {
		p.Nodes = append(p.Nodes, replica.Node{Node: registry.Node{ID: fmt.Sprintf("n%04d", i), Cluster: "c"}})
		name := batch.Name{ID: workload.NewID("a", workload.Job, fmt.Sprint(i)), Kind: workload.Job, Key: fmt.Sprint(i), Labels: map[string]string{"i": fmt.Sprint(i)}}
		w := replica.Workload{Node: i, Name: &name}
		w.Short, _ = workload.ShortIDOf(name.ID)
		p.Workloads = append(p.Workloads, w)
	}
	if _, err := l.TakeStates(t.Context(), source, &p, later); err != nil {
		t.Fatal(err)
	}
	got, err := l.States(t.Context(), replica.Mark{}, replica.Offer{Rows: 3 * n})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "many workloads", p, *got)
}
