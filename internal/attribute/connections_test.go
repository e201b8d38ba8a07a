package attribute_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A talker is a group with traffic, and what was shown of it in the open window.
type talker struct {
	whole   [4]int64 // counters: bytes received and sent, packets received and sent
	known   bool
	used    [4]int64 // of the open window
	classes usage.ClassBytes
	edges   *connection.Sketch
	merged  *connection.Sketch // of all windows
	all     connection.Traffic
}

func edgeOf(n int) connection.Edge {
	return connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Port: 80, Protocol: 6, Listens: n%2 == 0, Class: uint8(n % int(usage.NetworkClassLimit))}
}

// read draws traffic since the latest snapshot: edges with their classes, of which the whole may be less.
func (k *talker) read(t *rapid.T, g *usage.Group) {
	var s connection.Sketch
	var c usage.ClassBytes
	var sum connection.Traffic
	for range rapid.IntRange(0, 8).Draw(t, "edges") {
		e := edgeOf(rapid.IntRange(0, 30).Draw(t, "edge"))
		n := connection.Traffic{RxBytes: rapid.Int64Range(0, 1e6).Draw(t, "received"), TxBytes: rapid.Int64Range(0, 10).Draw(t, "sent"),
			RxPackets: rapid.Int64Range(0, 100).Draw(t, "packets received"), TxPackets: rapid.Int64Range(0, 100).Draw(t, "packets sent")}
		s.Add(e, n)
		sum = sum.Plus(n)
		if class := usage.NetworkClass(e.Class); class != usage.Unclassified {
			c.Add(class.Rx(), n.RxBytes)
			c.Add(class.Tx(), n.TxBytes)
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "misses") == 0 {
		n := rapid.Int64Range(1, 1e6).Draw(t, "missed")
		s.Miss(n)
		c.Add(usage.NetworkRxInternet, n)
		sum.RxBytes += n
	}
	k.known = k.known || rapid.IntRange(0, 9).Draw(t, "known") > 0
	if k.known {
		for i, n := range [...]int64{sum.RxBytes, sum.TxBytes, sum.RxPackets, sum.TxPackets} {
			switch rapid.IntRange(0, 3).Draw(t, "whole") {
			case 0:
				n = rapid.Int64Range(0, n).Draw(t, "less")
			case 1:
				n *= 2
			}
			k.whole[i] += n
			k.used[i] += n
		}
		for i, r := range [...]usage.Resource{usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets} {
			g.Put(r, k.whole[i])
		}
	}
	if c != (usage.ClassBytes{}) {
		g.Classes = &c
		for r, n := range c.All() {
			k.classes.Add(r, n)
		}
	}
	if len(s.Entries) > 0 || s.Missed > 0 {
		g.Connections = &s
		k.edges = connection.Merged(k.edges, &s)
	}
}

// checkLowered checks amounts of edges against those that were shown, of which they have the ratio if that is more than most.
func checkLowered(t *rapid.T, of string, got, shown []int64, most int64) (lowered bool) {
	t.Helper()
	sum, want := int64(0), int64(0)
	for i := range shown {
		sum, want = sum+got[i], want+shown[i]
	}
	if sum != min(want, most) {
		t.Fatalf("%s: the edges have %d of %d, %d were shown", of, sum, most, want)
	}
	for i := range shown {
		if want <= most && got[i] != shown[i] {
			t.Fatalf("%s: an edge has %d of %d", of, got[i], shown[i])
		}
		if exact := float64(shown[i]) * float64(most) / float64(max(want, 1)); want > most && (float64(got[i]) < exact-1.001 || float64(got[i]) > exact+1.001 || got[i] > shown[i]) {
			t.Fatalf("%s: an edge has %d of %d, want %f", of, got[i], shown[i], exact)
		}
	}
	return want > most
}

// check checks the connections of a row, and returns whether they were lowered.
func (k *talker) check(t *rapid.T, row *usage.Row) (lowered bool) {
	t.Helper()
	u, got := &row.Usage, row.Connections
	whole := u.Amount[usage.NetworkRx] + u.Amount[usage.NetworkTx]
	if got == nil {
		got = &connection.Sketch{}
	}
	shown := k.edges
	if shown == nil {
		shown = &connection.Sketch{}
	}
	rest := whole - got.Sum().Bytes()
	if want := min(shown.Missed, rest); got.Missed != want {
		t.Fatalf("missed %d, want %d", got.Missed, want)
	}
	find := func(e connection.Edge) (n connection.Entry) {
		if i := slices.IndexFunc(got.Entries, func(x connection.Entry) bool { return x.Edge == e }); i >= 0 {
			n = got.Entries[i]
		}
		return n
	}
	amounts := func(of func(*connection.Entry) (int64, bool)) (now, before []int64) {
		for _, e := range shown.Entries {
			if n, ok := of(&e); ok {
				m := find(e.Edge)
				v, _ := of(&m)
				now, before = append(now, v), append(before, n)
			}
		}
		return now, before
	}
	for i, d := range usage.Directions {
		unclassified, _ := u.Get(d.Whole)
		for r := range d.Classes.All() {
			unclassified -= u.Amount[r]
		}
		for class := range usage.NetworkClassLimit {
			most := unclassified
			if class != usage.Unclassified {
				most = u.Amount[class.Rx()+usage.Resource(i)]
			}
			now, before := amounts(func(e *connection.Entry) (int64, bool) {
				return [...]int64{e.RxBytes, e.TxBytes}[i], e.Class == uint8(class) || e.Edge == connection.Edge{}
			})
			lowered = checkLowered(t, class.String()+" of "+d.Whole.String(), now, before, most) || lowered
		}
	}
	for i := range got.Entries {
		e := &got.Entries[i]
		was := shown.Entries[slices.IndexFunc(shown.Entries, func(x connection.Entry) bool { return x.Edge == e.Edge })]
		if e.Bytes() == 0 || e.Error != min(was.Error, rest) || e.RxPackets > was.RxPackets || e.TxPackets > was.TxPackets {
			t.Fatalf("%+v, shown was %+v", e, was)
		}
		if i > 0 && got.Entries[i-1].Compare(e.Edge) >= 0 {
			t.Fatalf("%+v before %+v", got.Entries[i-1], e)
		}
	}
	if sum := got.Sum(); sum.RxPackets > k.used[2] || sum.TxPackets > k.used[3] {
		t.Fatalf("the edges have %d and %d packets of %d and %d", sum.RxPackets, sum.TxPackets, k.used[2], k.used[3])
	}
	k.merged = connection.Merged(k.merged, row.Connections)
	k.all = k.all.Plus(connection.Traffic{RxBytes: u.Amount[usage.NetworkRx], TxBytes: u.Amount[usage.NetworkTx], RxPackets: u.Amount[usage.NetworkRxPackets], TxPackets: u.Amount[usage.NetworkTxPackets]})
	if k.merged != nil && !k.merged.IsWithin(k.all) {
		t.Fatalf("%+v of windows that had %+v", *k.merged, k.all)
	}
	return lowered
}

// TestConnectionsAddUp checks the connections of windows: they are those that were shown if they are within their classes and
// the traffic as a whole, and have the ratio of those otherwise. Restarts between windows, live rows and snapshots change nothing.
func TestConnectionsAddUp(t *testing.T) {
	var some [2]int // windows whose edges are as shown, and lowered
	rapid.Check(t, func(t *rapid.T) {
		acc, k, v := attribute.New("n"), &talker{known: true}, recordLog{}
		var w usage.Window
		fresh := true
		for at := range rapid.Int64Range(1, 20).Draw(t, "ticks") {
			root := &usage.Group{Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: fresh, Life: workload.Life{ID: 1}, Workload: workload.Workload{ID: "root"}}
			g := &usage.Group{Slot: 1, New: fresh, Born: at > 0, Life: workload.Life{ID: 2}, Workload: workload.Workload{ID: "a", Name: "a"}}
			root.Put(usage.CPU, at)
			g.Put(usage.CPU, 0)
			fresh = false
			if at == 0 {
				for _, r := range []usage.Resource{usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets} {
					g.Put(r, 0)
				}
			} else {
				k.read(t, g)
			}
			var shown connection.Sketch
			if g.Connections != nil {
				shown = connection.Sketch{Entries: slices.Clone(g.Connections.Entries), Missed: g.Connections.Missed}
			}
			acc.Tick(&usage.Snapshot{Boot: "b", At: at * second, Mono: at * second, Node: usage.Node{CPUs: 1, MemTotal: 10, MemFree: 10}, Groups: []*usage.Group{root, g}})
			_ = acc.Live()
			if at == 0 || rapid.Bool().Draw(t, "window closes") {
				acc.CloseWindow(&w)
				i := slices.IndexFunc(w.Rows, func(r usage.Row) bool { return r.Workload.Name == "a" })
				if k.edges != nil {
					if k.check(t, &w.Rows[i]) {
						some[1]++
					} else {
						some[0]++
					}
				} else if w.Rows[i].Connections != nil {
					t.Fatalf("%+v, none were shown", w.Rows[i].Connections)
				}
				k.edges, k.used, k.classes = nil, [4]int64{}, usage.ClassBytes{}
				if v.save(acc, true); rapid.IntRange(0, 3).Draw(t, "restarts") == 0 {
					acc, fresh = v.restore(t), true
				}
			}
			if d := cmp.Diff(shown.Entries, entriesOf(g.Connections), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Fatalf("a snapshot changed:\n%s", d)
			}
		}
	})
	if some[0] < 50 || some[1] < 50 {
		t.Errorf("%d windows with edges as shown, %d with lowered ones: too few", some[0], some[1])
	}
}

func entriesOf(s *connection.Sketch) []connection.Entry {
	if s == nil {
		return nil
	}
	return s.Entries
}

// TestConnectionsOfUnknown checks that connections without traffic as a whole are not booked, and those of a group that ended are.
func TestConnectionsOfUnknown(t *testing.T) {
	s := newScenario(t)
	edges := connection.Sketch{}
	edges.Add(edgeOf(1), connection.Traffic{RxBytes: 7, RxPackets: 1})
	edges.Miss(3)
	group := func(final bool, also func(*usage.Group)) namedGroup {
		return namedGroup{name: "a", life: 5, cpu: 20, mem: 30, born: true, final: final, also: also}
	}
	s.tick(10*second, 1000)
	s.tick(11*second, 1100, group(false, func(g *usage.Group) { g.Connections = &edges }))
	s.close()
	if c := s.row("a").Connections; c != nil {
		t.Errorf("%+v without traffic", c)
	}
	s.tick(12*second, 1200, group(true, func(g *usage.Group) {
		traffic(10, 0, map[usage.Resource]int64{usage.NetworkRxNode: 7})(g)
		g.Put(usage.NetworkRxPackets, 1)
		g.Connections = &edges
	}))
	s.close()
	want := edges
	if d := cmp.Diff(&want, s.row("a").Connections, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
