package connection_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/connection"
)

// A tally is a sketch, and all that was added to it.
type tally struct {
	sketch connection.Sketch
	by     map[connection.Edge]connection.Traffic
	added  int64 // bytes
	missed int64 // bytes, of which by has the true edges too
}

func edge(n int) connection.Edge {
	return connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(n / 3)}), Port: 80, Protocol: 6, Listens: n%3 == 1, Class: uint8(n % 3)}
}

// drawn draws a sketch of at most k entries that was made by adding, missing, limiting and merging others.
func drawn(t *rapid.T, k, depth int) tally {
	y := tally{by: map[connection.Edge]connection.Traffic{}}
	// Few edges and some large amounts: what is replaced comes again.
	amount := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 1000))
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		e := edge(rapid.IntRange(0, 20).Draw(t, "edge"))
		n := connection.Traffic{RxBytes: amount.Draw(t, "received"), TxBytes: amount.Draw(t, "sent"), RxPackets: 1, TxPackets: 2}
		switch rapid.IntRange(0, 9).Draw(t, "step") {
		case 0:
			y.sketch.Miss(n.Bytes())
			y.missed += n.Bytes()
		case 1:
			if depth > 0 {
				o := drawn(t, k, depth-1)
				y.sketch.Merge(o.sketch)
				y.added, y.missed = y.added+o.added, y.missed+o.missed
				for e, n := range o.by {
					y.by[e] = y.by[e].Plus(n)
				}
			}
			continue
		case 2:
			y.sketch.Limit(k)
			continue
		default:
			y.sketch.Add(e, n)
			y.added += n.Bytes()
		}
		y.by[e] = y.by[e].Plus(n)
	}
	y.sketch.Limit(k)
	return y
}

// TestBounds checks all that a sketch promises against exact sums.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 5).Draw(t, "k")
		y := drawn(t, k, 2)
		s := y.sketch
		if len(s.Entries) > k {
			t.Fatalf("%d entries, at most %d", len(s.Entries), k)
		}
		if most := y.added/int64(k+1) + y.missed; s.Missed > most {
			t.Errorf("missed %d of %d bytes and of %d without an edge, at most %d", s.Missed, y.added, y.missed, most)
		}
		whole := y.added + y.missed
		if rest := whole - s.Sum().Bytes(); rest < 0 {
			t.Errorf("the entries have %d of %d bytes", s.Sum().Bytes(), whole)
		}
		for i, e := range s.Entries {
			n := y.by[e.Edge]
			if e.RxBytes > n.RxBytes || e.TxBytes > n.TxBytes || e.RxPackets > n.RxPackets || e.TxPackets > n.TxPackets || n.Bytes() > e.Bytes()+e.Error {
				t.Errorf("%+v had %+v", e, n)
			}
			if e.Error > s.Missed {
				t.Errorf("%+v: the error is above %d", e, s.Missed)
			}
			if i > 0 && s.Entries[i-1].Compare(e.Edge) >= 0 {
				t.Errorf("%+v before %+v", s.Entries[i-1], e)
			}
		}
		for e, n := range y.by {
			if !slices.ContainsFunc(s.Entries, func(x connection.Entry) bool { return x.Edge == e }) && n.Bytes() > s.Missed {
				t.Errorf("%+v had %+v and is missing: at most %d", e, n, s.Missed)
			}
		}
	})
}

// TestMerge checks that neither order nor nesting of merges changes anything before a limit.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var y [3]connection.Sketch
		for i := range y {
			y[i] = drawn(t, 4, 0).sketch
		}
		merged := func(order ...int) (s connection.Sketch) {
			for _, i := range order {
				s.Merge(y[i])
			}
			return s
		}
		want := merged(0, 1, 2)
		nested := merged(0)
		nested.Merge(merged(1, 2))
		for name, got := range map[string]connection.Sketch{"reversed": merged(2, 1, 0), "nested": nested} {
			if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
			}
		}
	})
}

// TestExact checks that up to the limit all amounts are exact.
func TestExact(t *testing.T) {
	var s connection.Sketch
	for i := range 3 * connection.Top {
		s.Add(edge(i%connection.Top), connection.Traffic{RxBytes: int64(i), TxPackets: 1})
		s.Limit(connection.Top)
	}
	if len(s.Entries) != connection.Top || s.Missed != 0 {
		t.Fatalf("%d entries, missed %d", len(s.Entries), s.Missed)
	}
	for i := range connection.Top {
		want := connection.Entry{Edge: edge(i), Traffic: connection.Traffic{RxBytes: int64(3*i + 3*connection.Top), TxPackets: 3}}
		if !slices.Contains(s.Entries, want) {
			t.Errorf("%+v is not in %+v", want, s.Entries)
		}
	}
	s.Add(edge(connection.Top), connection.Traffic{RxBytes: 1})
	s.Limit(connection.Top)
	if s.Missed != 1 || len(s.Entries) != connection.Top {
		t.Errorf("missed %d of one byte; %d entries", s.Missed, len(s.Entries))
	}
}

// TestMerged checks that a merged sketch is what Merge and Limit make of the two, and that neither changes.
func TestMerged(t *testing.T) {
	equal := []cmp.Option{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})}
	rapid.Check(t, func(t *rapid.T) {
		var y, was [2]connection.Sketch
		for i := range y {
			for n := range rapid.IntRange(0, connection.Top).Draw(t, "edges") {
				e := connection.Edge{Peer: netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 1).Draw(t, "net")), 0, byte(n)})}
				y[i].Add(e, connection.Traffic{TxBytes: rapid.Int64Range(1, 1000).Draw(t, "sent")})
			}
			y[i].Missed = rapid.Int64Range(0, 10).Draw(t, "missed")
			was[i] = connection.Sketch{Entries: slices.Clone(y[i].Entries), Missed: y[i].Missed}
		}
		want := connection.Sketch{}
		want.Merge(was[0])
		want.Merge(was[1])
		want.Limit(connection.Top)
		if d := cmp.Diff(&want, connection.Merged(&y[0], &y[1]), equal...); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if d := cmp.Diff(was, y, equal...); d != "" {
			t.Errorf("merging changed them (-was +now):\n%s", d)
		}
		if connection.Merged(nil, &y[0]) != &y[0] || connection.Merged(&y[0], nil) != &y[0] || connection.Merged(nil, nil) != nil {
			t.Error("with nil it is not the other one")
		}
	})
}

// TestLimitOfLowered checks that a limit does not lower what a sketch has missed, where entries were lowered below it.
func TestLimitOfLowered(t *testing.T) {
	s := connection.Sketch{Missed: 100, Entries: []connection.Entry{{Edge: edge(1), Traffic: connection.Traffic{RxBytes: 5}}, {Edge: edge(2), Traffic: connection.Traffic{RxBytes: 4}}}}
	if s.Limit(1); s.Missed != 100 || len(s.Entries) != 1 || s.Entries[0].RxBytes != 5 {
		t.Errorf("%+v", s)
	}
}

// TestWithin checks that sketches that are within their wholes are within the sum of these once they are merged.
func TestWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var merged *connection.Sketch
		var whole connection.Traffic
		amount := rapid.Int64Range(1, 20)
		for range rapid.IntRange(2, 5).Draw(t, "sketches") {
			s := &connection.Sketch{}
			for range rapid.IntRange(0, connection.Top).Draw(t, "edges") {
				e := connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 99).Draw(t, "peer"))})}
				s.Add(e, connection.Traffic{RxBytes: amount.Draw(t, "received"), TxBytes: amount.Draw(t, "sent"), RxPackets: 1})
			}
			rest := connection.Traffic{RxBytes: amount.Draw(t, "rest"), TxBytes: amount.Draw(t, "rest")}
			s.Missed = rapid.Int64Range(0, rest.Bytes()).Draw(t, "missed")
			for i := range s.Entries {
				s.Entries[i].Error = rapid.Int64Range(0, s.Missed).Draw(t, "error")
			}
			whole = whole.Plus(rest).Plus(s.Sum())
			if merged = connection.Merged(merged, s); merged.Validate() != nil || !merged.IsWithin(whole) {
				t.Fatalf("%+v of %+v: %v", *merged, whole, merged.Validate())
			}
		}
	})
}
