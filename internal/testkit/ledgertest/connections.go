package ledgertest

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// connectionsOf returns connections that have all bytes received in rows, by quarter and workload.
func connectionsOf(rows []batch.Minute) (list []batch.Connections) {
	at := map[[2]int64]*connection.Sketch{}
	for i := range rows {
		m := &rows[i]
		quarter := m.Minute - m.Minute%batch.Quarter
		k := [2]int64{quarter, int64(m.Workload)}
		if at[k] == nil {
			at[k] = &connection.Sketch{}
			list = append(list, batch.Connections{Workload: m.Workload, Minute: quarter, Sketch: at[k]})
		}
		at[k].Add(connection.Edge{Peer: netip.MustParseAddr("fd00::1"), Port: 80, Protocol: 6, Class: uint8(usage.ClassInternal)},
			connection.Traffic{RxBytes: m.Usage.Amount[usage.NetworkRx]})
	}
	return list
}

// A talkCase is a ledger with a node whose workload 7 has connections.
type talkCase struct {
	*testing.T
	l    *ledger.Ledger
	db   reader
	node string
	mark batch.Mark
}

// received returns a sketch with bytes received from peers.
func received(bytes int64, peers ...byte) *connection.Sketch {
	s := &connection.Sketch{}
	for _, n := range peers {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, n}), Port: 443, Protocol: 6, Listens: n%2 == 0}, connection.Traffic{RxBytes: bytes, TxBytes: 1, RxPackets: 2, TxPackets: 3})
	}
	return s
}

// entry returns the next entry of the node, with connections in the quarter of a minute, and all of their traffic in that minute.
func (c *talkCase) entry(minute int64, s *connection.Sketch) *batch.Entry {
	e := Entry(c.node, batch.Stream(fmt.Appendf(nil, "%-16s", c.node)[:16]), c.mark, 7, 0, minute)
	sum, u := s.Sum(), &e.Minutes[0].Usage
	u.Put(usage.NetworkRx, sum.RxBytes+s.Missed, usage.Measured)
	u.Put(usage.NetworkTx, sum.TxBytes, usage.Measured)
	u.Put(usage.NetworkRxPackets, sum.RxPackets, usage.Measured)
	u.Put(usage.NetworkTxPackets, sum.TxPackets, usage.Measured)
	e.Connections = []batch.Connections{{Workload: 7, Minute: minute - minute%batch.Quarter, Sketch: s}}
	c.mark.Next, c.mark.Last = c.mark.Next+1, e.Hash
	return e
}

func (c *talkCase) books(minute int64, s *connection.Sketch) {
	c.Helper()
	book(c.T, c.l, batch.Accepted, c.entry(minute, s))
}

// has checks the connections of the node, by hour.
func (c *talkCase) has(what string, want map[int64]*connection.Sketch) {
	c.Helper()
	got := map[int64]*connection.Sketch{}
	rows, err := c.db.db.Query("SELECT s.minute, s.sketch FROM connections s JOIN workload w ON w.id = s.workload JOIN node n ON n.id = w.node WHERE n.node_id = $1", c.node)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var minute int64
		var b []byte
		if err := rows.Scan(&minute, &b); err != nil {
			c.Fatal(err)
		}
		if got[minute], err = connection.Decode(b); err != nil {
			c.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		c.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); d != "" {
		c.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// connectionFindings returns what a check finds of connections; anything else is an error.
func (c *talkCase) connectionFindings() (texts []string) {
	c.Helper()
	findings, err := c.l.Check(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	for _, f := range findings {
		if !strings.HasPrefix(f, "connections: ") {
			c.Errorf("check: %s", f)
		}
		texts = append(texts, f)
	}
	return texts
}

// testConnections: connections are merged by hour, once for each batch, and a check finds those that cannot be.
func testConnections(t *testing.T, dsn string) {
	c := &talkCase{T: t, l: Open(t, dsn), db: reader{t, DB(t, dsn)}, node: "talker", mark: batch.Mark{Next: 1}}
	Node(t, c.l, c.node)
	hour := minuteOf(Day)
	c.books(hour+3, received(5, 1, 2))
	last := c.entry(hour+59, received(7, 2, 3))
	book(t, c.l, batch.Accepted, last)
	book(t, c.l, batch.Duplicate, last)
	first := connection.Merged(received(5, 1, 2), received(7, 2, 3))
	c.has("one hour", map[int64]*connection.Sketch{hour: first})

	// Two entries of one transaction, and more edges than are kept.
	many := make([]byte, connection.Top)
	for i := range many {
		many[i] = byte(100 + i)
	}
	second := received(1000, many...)
	second.Missed = 4
	book(t, c.l, batch.Accepted, c.entry(hour+60, second), c.entry(hour+61, received(3, 1, 2)))
	c.has("two hours", map[int64]*connection.Sketch{hour: first, hour + 60: connection.Merged(second, received(3, 1, 2))})
	if f := c.connectionFindings(); len(f) > 0 {
		t.Errorf("check: %q", f)
	}

	// Connections whose sum does not fit are left out.
	huge := c.entry(hour+121, received(1, 9))
	huge.Minutes = nil
	huge.Connections[0].Sketch.Missed = math.MaxInt64
	book(t, c.l, batch.Accepted, huge)
	again := c.entry(hour+122, received(1, 9))
	again.Connections[0].Sketch = huge.Connections[0].Sketch
	book(t, c.l, batch.Accepted, again)
	c.has("huge", map[int64]*connection.Sketch{hour: first, hour + 60: connection.Merged(second, received(3, 1, 2)), hour + 120: huge.Connections[0].Sketch})

	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := c.db.db.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, n int) {
		t.Helper()
		if f := c.connectionFindings(); len(f) != n {
			t.Errorf("%s: check: %q, want %d", what, f, n)
		}
	}
	want("more than the traffic", 1)
	exec("DELETE FROM connections WHERE minute = $1", hour+120)
	want("deleted", 0)
	one := first.Entries[0]
	one.TxPackets += 100
	exec("UPDATE connections SET sketch = $1 WHERE minute = $2", connection.Encode(&connection.Sketch{Entries: []connection.Entry{one}}), hour)
	want("more packets than the traffic", 1)
	exec("UPDATE connections SET sketch = $1 WHERE minute = $2", []byte{9}, hour)
	want("not a sketch", 1)
	exec("INSERT INTO connections (minute, workload, sketch, rev) SELECT minute + 14400, workload, $1, rev FROM connections WHERE minute = $2", connection.Encode(first), hour)
	want("of a day without any rows", 2)
	exec("DELETE FROM connections WHERE minute = $1", hour+14400)
	// The next connections replace it.
	c.books(hour+4, received(1, 1))
	want("replaced", 0)

	// Servers above get those of hours that are folded.
	c.books(hour+180, received(1, 1))
	if err := c.l.Fold(t.Context(), Day.Add(3*time.Hour+ledger.Default().Grace)); err != nil {
		t.Fatal(err)
	}
	p, err := c.l.States(t.Context(), replica.Mark{}, replica.Offer{Rows: 1000})
	if err != nil {
		t.Fatal(err)
	}
	sent := map[int64]*connection.Sketch{}
	for _, s := range p.Connections {
		sent[s.Minute] = s.Sketch
	}
	c.has("sent, and the hour that is not", map[int64]*connection.Sketch{hour: sent[hour], hour + 60: sent[hour+60], hour + 180: received(1, 1)})
	if len(sent) != 2 || sent[hour] == nil || sent[hour+60] == nil {
		t.Errorf("connections of hours %v are sent", slices.Collect(maps.Keys(sent)))
	}

	// Jobs have none: any user can send them.
	c.node, c.mark = "jobs-of-talker", batch.Mark{Next: 1}
	n := registry.Node{ID: c.node, Cluster: "c", Name: c.node, MachineID: registry.JobsMachineID("machine-talker"), Boot: "boot", At: Day}
	if err := c.l.PutNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	c.books(hour+3, received(5, 1, 2))
	c.has("jobs", nil)
}

// testConnectionsDropped: connections are kept as long as hours, and those of dropped hours are left out.
func testConnectionsDropped(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours, cfg.Slice = 24*time.Hour, 2*24*time.Hour, 2
	c := &talkCase{T: t, l: OpenWith(t, dsn, cfg), db: reader{t, DB(t, dsn)}, node: "dropped-talker", mark: batch.Mark{Next: 1}}
	Node(t, c.l, c.node)
	day := minuteOf(Day)
	want := map[int64]*connection.Sketch{}
	for _, at := range []int64{0, 60, 120, 23 * 60, 24 * 60, 3 * 24 * 60} {
		c.books(day+at, received(5, 1))
		want[day+at] = received(5, 1)
	}
	drop := func(at time.Duration) {
		t.Helper()
		if err := c.l.Fold(t.Context(), Day.Add(at)); err != nil {
			t.Fatal(err)
		}
		if err := c.l.Retain(t.Context(), Day.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.l.Retain(t.Context(), Day.Add(73*time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.has("not folded", want)
	drop(73 * time.Hour)
	for _, at := range []int64{0, 60, 120, 23 * 60} {
		delete(want, day+at)
	}
	c.has("dropped", want)
	c.books(day+180, received(5, 1)) // late
	c.has("late", want)
	c.books(day+24*60+1, received(6, 1)) // of an hour whose minutes are dropped
	want[day+24*60] = received(11, 1)
	want[day+24*60].Entries[0].TxBytes, want[day+24*60].Entries[0].RxPackets, want[day+24*60].Entries[0].TxPackets = 2, 4, 6
	c.has("of hours", want)
	if f := c.connectionFindings(); len(f) > 0 {
		t.Errorf("check: %q", f)
	}
}
