package wire_test

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	pb "mete.dev/mete/proto"
)

var equalAddresses = cmpopts.EquateComparable(netip.Addr{})

// drawConnections draws a sketch as agents make them, nil now and then.
func drawConnections(t *rapid.T) *connection.Sketch {
	if rapid.IntRange(0, 2).Draw(t, "connections") == 0 {
		return nil
	}
	// All of a sketch fit into 63 bits.
	part := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1<<20), rapid.Int64Range(0, math.MaxInt64/(4*connection.Top)))
	s := &connection.Sketch{}
	for range rapid.IntRange(0, connection.Top).Draw(t, "edges") {
		peer := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "peer")})
		if rapid.Bool().Draw(t, "IPv6") {
			peer = netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, "peer")})
		}
		s.Add(connection.Edge{Peer: peer, Port: rapid.Uint16().Draw(t, "port"), Protocol: rapid.Byte().Draw(t, "protocol"),
			Listens: rapid.Bool().Draw(t, "listens"), Class: uint8(rapid.IntRange(0, int(usage.NetworkClassLimit)-1).Draw(t, "class"))},
			connection.Traffic{RxBytes: part.Draw(t, "received"), TxBytes: part.Draw(t, "sent"), RxPackets: part.Draw(t, "packets"), TxPackets: part.Draw(t, "packets")})
	}
	if rapid.Bool().Draw(t, "missed") {
		s.Missed = amount.Draw(t, "missed")
		for i := range s.Entries {
			s.Entries[i].Error = rapid.Int64Range(0, s.Missed).Draw(t, "error")
		}
	}
	return s
}

// TestConnections checks that connections come back as they were sent, that the same ones give the same bytes, and that a server that does
// not know them reads all else.
func TestConnections(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := drawBatch(rt)
		for i := range want.Windows {
			for j := range want.Windows[i].Rows {
				want.Windows[i].Rows[j].Connections = drawConnections(rt)
			}
		}
		sent := encode(t, want)
		got := decode(t, sent)
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), equalAddresses); d != "" {
			rt.Fatalf("came back different (-want +got):\n%s", d)
		}
		if again := encode(t, got); !bytes.Equal(again, sent) {
			rt.Error("the same batch gives other bytes")
		}
		for i := range want.Windows {
			for j := range want.Windows[i].Rows {
				want.Windows[i].Rows[j].Connections = nil
			}
		}
		if d := cmp.Diff(want, decode(t, spoiled(t, got, func(m *pb.Batch) { m.Connections = nil })), cmpopts.EquateEmpty()); d != "" {
			rt.Errorf("without connections (-want +got):\n%s", d)
		}
		spoiled(t, want, func(m *pb.Batch) {
			if m.Connections != nil {
				rt.Errorf("a batch without connections says %v", m.Connections)
			}
		})
	})
}

// spoiled encodes a batch and changes the message.
func spoiled(t testing.TB, b *batch.Batch, spoil func(*pb.Batch)) []byte {
	t.Helper()
	var m pb.Batch
	if err := proto.Unmarshal(content(t, encode(t, b)), &m); err != nil {
		t.Fatal(err)
	}
	spoil(&m)
	raw, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return frame(t, raw)
}

// talking returns a batch of two windows with three rows, of which the first and the last have two edges each.
func talking() *batch.Batch {
	s := func() *connection.Sketch {
		s := &connection.Sketch{Missed: 9}
		s.Add(connection.Edge{Peer: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: 6, Class: 1}, connection.Traffic{RxBytes: 1, TxBytes: 2, RxPackets: 3, TxPackets: 4})
		s.Add(connection.Edge{Peer: netip.MustParseAddr("fd00::1"), Port: 80, Protocol: 6, Class: 2}, connection.Traffic{RxBytes: 1})
		return s
	}
	return &batch.Batch{Number: 1, Windows: []usage.Window{
		{Boot: "b", End: 10, Rows: []usage.Row{{ShortID: 1, Connections: s()}, {ShortID: 2}}},
		{Boot: "b", Start: 10, End: 20, Rows: []usage.Row{{ShortID: 1, Connections: s()}}},
	}}
}

// TestConnectionsRefused checks that connections are refused that no agent sends.
func TestConnectionsRefused(t *testing.T) {
	for _, tt := range []struct {
		spoil func(m *pb.Connections)
		want  string
	}{
		{func(m *pb.Connections) { m.Peers = m.Peers[1:] }, "3 bytes of IPv4 addresses"},
		{func(m *pb.Connections) { m.Peers = make([]byte, 16) }, "16 bytes of IPv4 addresses and 16 of IPv6 addresses for 4 edges"},
		{func(m *pb.Connections) { m.Peers6 = append(m.Peers6, 1) }, "17 of IPv6 addresses"},
		{func(m *pb.Connections) { copy(m.Peers6, []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff")) }, "edge 1 has the peer ::ffff:"},
		{func(m *pb.Connections) { m.Peer[3] = 2 }, "edge 3 has peer 2 of 2"},
		{func(m *pb.Connections) { m.Port[1] = 1 << 16 }, "edge 1 has port 65536"},
		{func(m *pb.Connections) { m.Protocol[1] = 256 }, "of protocol 256"},
		{func(m *pb.Connections) { m.Class[2] = uint32(usage.NetworkClassLimit) }, "class 7 is unknown: the sender is newer"},
		{func(m *pb.Connections) { m.RxBytes[1] = 1 << 63 }, "row 0: edge 1 has {RxBytes:-9223372036854775808"},
		{func(m *pb.Connections) { m.TxPackets[1] = 1 << 63 }, "row 0: edge 1 has"},
		{func(m *pb.Connections) { m.RxBytes[2], m.RxBytes[3] = 1<<62, 1<<62 }, "row 2: edge 1 has"},
		{func(m *pb.Connections) { m.Error = []uint64{0, 10, 0, 0} }, "edge 1 has an error of 10, and 9 are missed"},
		{func(m *pb.Connections) { m.Error = []uint64{0, 1 << 63, 0, 0} }, "edge 1 has an error of -"},
		{func(m *pb.Connections) { m.Error = []uint64{0} }, "1 errors for 4 edges"},
		{func(m *pb.Connections) { m.Missed[1] = 1 << 63 }, "row 2: missed -"},
		{func(m *pb.Connections) { m.Missed = m.Missed[1:] }, "2 rows and 1 missed"},
		{func(m *pb.Connections) { m.Peer[0], m.Peer[1] = 1, 0 }, "row 0: edge 1 is not after the previous one"},
		{func(m *pb.Connections) { m.Peer[1], m.Class[1] = m.Peer[0], m.Class[0] }, "row 0: edge 1 is not after the previous one"},
		{func(m *pb.Connections) { m.Rows[1]++ }, "sketch 1 is of row 3 of 3"},
		{func(m *pb.Connections) { m.Rows[0] = 1<<32 - 1 }, "of row 4294967295 of 3"},
		{func(m *pb.Connections) { m.Rows = m.Rows[1:] }, "1 rows and 2 missed for 2 numbers"},
		{func(m *pb.Connections) { m.Edges[1]++ }, "row 2 has 3 edges, 2 are left"},
		{func(m *pb.Connections) { m.Edges[1]-- }, "1 edges are of no row"},
		{func(m *pb.Connections) { m.Listens = nil }, "a column of 0 numbers for 4 edges"},
		{func(m *pb.Connections) { m.TxBytes = append(m.TxBytes, 1) }, "a column of 5 numbers for 4 edges"},
		{func(m *pb.Connections) {
			const n = connection.Top - 1 // more
			m.Edges[1], m.Error = m.Edges[1]+n, nil
			m.Peer, m.Protocol, m.Listens, m.Class = append(m.Peer, slices.Repeat([]uint32{1}, n)...), append(m.Protocol, make([]uint32, n)...), append(m.Listens, make([]bool, n)...), append(m.Class, make([]uint32, n)...)
			for i := range n {
				m.Port = append(m.Port, uint32(1000+i))
			}
			for _, c := range []*[]uint64{&m.RxBytes, &m.TxBytes, &m.RxPackets, &m.TxPackets} {
				*c = append(*c, make([]uint64, n)...)
			}
		}, "row 2: 21 edges, more than 20"},
	} {
		sent := spoiled(t, talking(), func(m *pb.Batch) { tt.spoil(m.Connections) })
		if _, err := wire.Decode(sent, wire.Default()); !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, wire.ErrNewer) || !strings.Contains(err.Error(), "connections: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	if _, err := wire.Decode(spoiled(t, talking(), func(*pb.Batch) {}), wire.Default()); err != nil {
		t.Error(err)
	}
}

// TestTooManyConnections checks that those of the latest rows are sent where a batch has more edges than a server takes.
func TestTooManyConnections(t *testing.T) {
	s := &connection.Sketch{}
	for i := range connection.Top {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}, connection.Traffic{RxBytes: 1})
	}
	most := wire.Default().Edges / connection.Top
	b := &batch.Batch{Windows: []usage.Window{{Boot: "b", Rows: make([]usage.Row, most/2+1)}, {Boot: "b", Rows: make([]usage.Row, most/2)}}}
	for i := range b.Windows {
		for j := range b.Windows[i].Rows {
			b.Windows[i].Rows[j].Connections = s
		}
	}
	got := decode(t, encode(t, b)).Windows
	for i, w := range got {
		for j, r := range w.Rows {
			if (r.Connections == nil) != (i == 0 && j == 0) {
				t.Fatalf("row %d of window %d: %v", j, i, r.Connections)
			}
		}
	}
}
