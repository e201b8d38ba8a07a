package walltime_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// drawTalk gives a row traffic and connections, sometimes all of the traffic.
func drawTalk(t *rapid.T, r *usage.Row) {
	s := &connection.Sketch{}
	amount := rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, 1<<40))
	for range rapid.OneOf(rapid.IntRange(0, 5), rapid.Just(connection.Top)).Draw(t, "edges") {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 60).Draw(t, "peer"))})},
			connection.Traffic{RxBytes: amount.Draw(t, "received"), TxBytes: amount.Draw(t, "sent"), RxPackets: amount.Draw(t, "packets"), TxPackets: amount.Draw(t, "packets")})
	}
	sum := s.Sum()
	rest := func() int64 { return rapid.OneOf(rapid.Just(int64(0)), amount).Draw(t, "rest") }
	r.Usage.Put(usage.NetworkRx, sum.RxBytes+rest(), usage.Measured)
	r.Usage.Put(usage.NetworkTx, sum.TxBytes+rest(), usage.Measured)
	r.Usage.Put(usage.NetworkRxPackets, sum.RxPackets+rest(), usage.Measured)
	r.Usage.Put(usage.NetworkTxPackets, sum.TxPackets+rest(), usage.Measured)
	s.Missed = rapid.Int64Range(0, r.Usage.Amount[usage.NetworkRx]+r.Usage.Amount[usage.NetworkTx]-sum.Bytes()).Draw(t, "missed")
	for i := range s.Entries {
		s.Entries[i].Error = rapid.Int64Range(0, s.Missed).Draw(t, "error")
	}
	r.Connections = s
}

func trafficOf(u *usage.Usage) connection.Traffic {
	return connection.Traffic{RxBytes: u.Amount[usage.NetworkRx], TxBytes: u.Amount[usage.NetworkTx], RxPackets: u.Amount[usage.NetworkRxPackets], TxPackets: u.Amount[usage.NetworkTxPackets]}
}

// TestConnectionsAddUp checks that the connections of each quarter are within the traffic of its minutes, that they sum to those of
// the windows but for a byte of each piece, as what is missed does, and that the windows do not change.
func TestConnectionsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t)
		at := ws[0].Start
		for i := range ws { // most are of less than two hours
			if rapid.IntRange(0, 4).Draw(t, "long") > 0 {
				ws[i].End = ws[i].Start + rapid.OneOf(rapid.Just(int64(10e9)), rapid.Int64Range(1, int64(2*time.Hour))).Draw(t, "length")
			}
			length := ws[i].End - ws[i].Start
			ws[i].Start, ws[i].End = at, at+length
			at += length
		}
		by := make([]time.Duration, len(ws))
		want := map[workload.ShortID]connection.Sketch{}
		pieces := int64(0)
		for i := range ws {
			by[i] = time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "by"))
			for j := range ws[i].Rows {
				r := &ws[i].Rows[j]
				if rapid.IntRange(0, 3).Draw(t, "talks") > 0 {
					drawTalk(t, r)
				}
				if r.Connections == nil {
					continue
				}
				if ws[i].End-ws[i].Start > int64(2*time.Hour) {
					continue
				}
				s := want[r.ShortID]
				s.Merge(*r.Connections)
				want[r.ShortID] = s
				pieces += 10 * int64(len(r.Connections.Entries)) // of two hours at most
			}
		}
		c := cut(t, ws, by)
		whole := map[[2]int64]connection.Traffic{}
		for i := range c.Minutes {
			m := &c.Minutes[i]
			k := [2]int64{m.Minute / batch.Quarter, int64(m.Workload)}
			whole[k] = whole[k].Plus(trafficOf(&m.Usage))
		}
		got := map[workload.ShortID]connection.Sketch{}
		for i, q := range c.Connections {
			if err := q.Sketch.Validate(); err != nil || q.Minute%batch.Quarter != 0 {
				t.Fatalf("minute %d: %v", q.Minute, err)
			}
			if w := whole[[2]int64{q.Minute / batch.Quarter, int64(q.Workload)}]; !q.Sketch.IsWithin(w) {
				t.Fatalf("%+v of %+v", *q.Sketch, w)
			}
			if p := max(i-1, 0); i > 0 && (c.Connections[p].Minute > q.Minute || c.Connections[p].Minute == q.Minute && c.Connections[p].Workload >= q.Workload) {
				t.Fatalf("%+v before %+v", c.Connections[p], q)
			}
			s := got[q.Workload]
			s.Merge(*q.Sketch)
			got[q.Workload] = s
		}
		for id, w := range want {
			g := got[id]
			all := len(w.Entries) <= connection.Top // else the largest of each quarter
			if g.Missed < w.Missed-int64(20*len(ws)) || all && g.Missed > w.Missed+int64(100*len(ws)) {
				t.Fatalf("missed %d, want %d", g.Missed, w.Missed)
			}
			for _, e := range w.Entries {
				most := g.Missed
				if i := slices.IndexFunc(g.Entries, func(x connection.Entry) bool { return x.Edge == e.Edge }); i >= 0 {
					most = g.Entries[i].Bytes() + g.Entries[i].Error
				}
				if e.Bytes() > most+int64(20*len(ws)) {
					t.Fatalf("an edge of %d bytes may have had %d at most", e.Bytes(), most)
				}
			}
			gs, sum := g.Sum(), w.Sum()
			// Packets of a piece without bytes are left out.
			for i, n := range [][2]int64{{gs.RxBytes, sum.RxBytes}, {gs.TxBytes, sum.TxBytes}, {gs.RxPackets, sum.RxPackets}, {gs.TxPackets, sum.TxPackets}} {
				if n[0] > n[1] || all && i < 2 && n[0] < n[1]-pieces {
					t.Fatalf("the edges have %+v, want %+v", gs, sum)
				}
			}
		}
		for id := range got {
			if _, ok := want[id]; !ok {
				t.Fatalf("workload %d has connections of windows that are too long", id)
			}
		}
	})
}

// TestConnectionsOfNothing checks that connections without traffic are left out: they have no row in the ledger.
func TestConnectionsOfNothing(t *testing.T) {
	w := usage.Window{Boot: "b", End: 10e9, Offset: 1_700_000_000e9, CPUs: 1}
	for id, s := range []connection.Sketch{{}, {Entries: []connection.Entry{{Edge: connection.Edge{Peer: netip.MustParseAddr("10.0.0.1")}}}}} {
		w.Rows = append(w.Rows, usage.Row{ShortID: workload.ShortID(id), Connections: &s})
	}
	if c, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); err != nil || len(c.Connections) > 0 {
		t.Errorf("%+v, %v", c.Connections, err)
	}
}

// TestConnectionsAtQuarters checks the pieces of a window of a minute of which two thirds are before the edge of a quarter.
func TestConnectionsAtQuarters(t *testing.T) {
	edge := connection.Edge{Peer: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: 6}
	const quarter = int64(1_700_000_100) // seconds
	w := usage.Window{Boot: "b", End: 60e9, Offset: (quarter - 40) * 1e9, CPUs: 1, Rows: []usage.Row{{ShortID: 7,
		Connections: &connection.Sketch{Missed: 30, Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 60, TxBytes: 90, RxPackets: 3, TxPackets: 1}, Error: 9}}}}}}
	for r, n := range map[usage.Resource]int64{usage.NetworkRx: 100, usage.NetworkTx: 120, usage.NetworkRxPackets: 3, usage.NetworkTxPackets: 1} {
		w.Rows[0].Usage.Put(r, n, usage.Measured)
	}
	c, err := walltime.Cut([]usage.Window{w}, []time.Duration{0})
	if err != nil {
		t.Fatal(err)
	}
	want := []connection.Sketch{
		{Missed: 21, Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 40, TxBytes: 60, RxPackets: 2}, Error: 7}}},
		{Missed: 11, Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 20, TxBytes: 30, RxPackets: 1, TxPackets: 1}, Error: 4}}},
	}
	if len(c.Connections) != 2 {
		t.Fatalf("%+v", c.Connections)
	}
	for i, q := range c.Connections {
		if at := quarter/60 + int64(i-1)*batch.Quarter; q.Workload != 7 || q.Minute != at || q.Sketch.Missed != want[i].Missed || len(q.Sketch.Entries) != 1 || q.Sketch.Entries[0] != want[i].Entries[0] {
			t.Errorf("minute %d: %+v, want minute %d: %+v", q.Minute, *q.Sketch, at, want[i])
		}
	}
}

// TestConnectionsOfLongWindows checks that the connections of windows of more than two hours are left out.
func TestConnectionsOfLongWindows(t *testing.T) {
	for length, want := range map[time.Duration]int{2 * time.Hour: 8, 2*time.Hour + 1: 0} {
		w := usage.Window{Boot: "b", End: int64(length), Offset: 1_700_000_100e9, CPUs: 1, Rows: []usage.Row{{ShortID: 7, Connections: &connection.Sketch{Missed: 3600}}}}
		w.Rows[0].Usage.Put(usage.NetworkRx, 3600, usage.Measured)
		c, err := walltime.Cut([]usage.Window{w}, []time.Duration{0})
		if err != nil || len(c.Connections) != want {
			t.Errorf("%v: %+v, %v; want %d", length, c, err, want)
		}
	}
}

// TestConnectionsBeyondTraffic checks that connections are refused that have more than the traffic of their row, in any direction.
func TestConnectionsBeyondTraffic(t *testing.T) {
	edge := connection.Edge{Peer: netip.MustParseAddr("10.0.0.1")}
	for name, s := range map[string]connection.Sketch{
		"received":         {Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 11}}}},
		"sent":             {Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{TxBytes: 21}}}},
		"packets received": {Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 1, RxPackets: 4}}}},
		"packets sent":     {Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 1, TxPackets: 5}}}},
		"missed":           {Missed: 31},
		"missed of a rest": {Missed: 26, Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: 2, TxBytes: 3}}}},
		"negative":         {Entries: []connection.Entry{{Edge: edge, Traffic: connection.Traffic{RxBytes: -1}}}},
	} {
		row := usage.Row{ShortID: 1, Connections: &s}
		for r, n := range map[usage.Resource]int64{usage.NetworkRx: 10, usage.NetworkTx: 20, usage.NetworkRxPackets: 3, usage.NetworkTxPackets: 4} {
			row.Usage.Put(r, n, usage.Measured)
		}
		w := usage.Window{Boot: "b", End: 10e9, Offset: 1e18, CPUs: 1, Rows: []usage.Row{row}}
		if _, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want fault.ErrInvalid", name, err)
		}
	}
}
