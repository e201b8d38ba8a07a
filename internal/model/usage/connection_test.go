package usage_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// talked returns a sketch with bytes received from each of some peers.
func talked(bytes int64, peers ...byte) *connection.Sketch {
	s := &connection.Sketch{}
	for _, n := range peers {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, n})}, connection.Traffic{RxBytes: bytes})
	}
	return s
}

// TestMergeConnections checks that rows of merged windows have the connections of the same life, and of whole lives that share a row, and
// that merging and cloning change no other window.
func TestMergeConnections(t *testing.T) {
	var cpu usage.Usage
	cpu.Put(usage.CPU, 1, usage.Measured)
	whole := func(s *connection.Sketch) usage.Row {
		r := usage.Row{ShortID: 2, Usage: cpu, Ended: true, Connections: s, Has: usage.SetOf(usage.CPU)}
		r.Total[usage.CPU] = 1
		return r
	}
	first := usage.Window{End: 10, Rows: []usage.Row{{ShortID: 1, Connections: talked(5, 1, 2)}, whole(talked(1, 1)), {ShortID: 3}}}
	next := usage.Window{Start: 10, End: 20, Rows: []usage.Row{{ShortID: 1, Connections: talked(3, 2, 3)}, whole(talked(2, 1)), {ShortID: 3, Connections: talked(4, 4)}}}
	was := []*connection.Sketch{talked(5, 1, 2), talked(1, 1), nil, talked(3, 2, 3), talked(2, 1), talked(4, 4)}
	sum := first.Clone()
	sum.Merge(&next)
	again := sum.Clone()
	again.Merge(&usage.Window{Start: 20, End: 30, Rows: []usage.Row{{ShortID: 1, Connections: talked(9, 1)}}})

	want := map[workload.ShortID]*connection.Sketch{1: talked(5, 1, 2), 2: talked(3, 1), 3: talked(4, 4)}
	want[1].Merge(*talked(3, 2, 3))
	equal := cmpopts.EquateComparable(netip.Addr{})
	if len(sum.Rows) != 3 {
		t.Errorf("%d rows", len(sum.Rows))
	}
	for _, r := range sum.Rows {
		if d := cmp.Diff(want[r.ShortID], r.Connections, equal); d != "" {
			t.Errorf("workload %d (-want +got):\n%s", r.ShortID, d)
		}
	}
	for i, r := range slices.Concat(first.Rows, next.Rows) {
		if d := cmp.Diff(was[i], r.Connections, equal); d != "" {
			t.Errorf("row %d changed (-was +now):\n%s", i, d)
		}
	}
}
