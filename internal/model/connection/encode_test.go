package connection_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
)

// TestEncode checks that sketches come back as they were stored.
func TestEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &connection.Sketch{Missed: rapid.OneOf(rapid.Just(int64(math.MaxInt64)), rapid.Int64Range(0, 1000)).Draw(t, "missed")}
		part := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, math.MaxInt64/(4*connection.Top)))
		for range rapid.IntRange(0, connection.Top).Draw(t, "edges") {
			peer := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "peer")))
			if rapid.Bool().Draw(t, "IPv6") {
				peer = netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, "peer")})
			}
			want.Add(connection.Edge{Peer: peer, Port: rapid.Uint16().Draw(t, "port"), Protocol: rapid.Byte().Draw(t, "protocol"), Listens: rapid.Bool().Draw(t, "listens"), Class: rapid.Byte().Draw(t, "class")},
				connection.Traffic{RxBytes: part.Draw(t, "received"), TxBytes: part.Draw(t, "sent"), RxPackets: part.Draw(t, "packets"), TxPackets: part.Draw(t, "packets")})
		}
		for i := range want.Entries {
			want.Entries[i].Error = rapid.Int64Range(0, want.Missed).Draw(t, "error")
		}
		b := connection.Encode(want)
		got, err := connection.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		if len(want.Entries) > 0 { // the last byte belongs to an edge
			if s, err := connection.Decode(b[:len(b)-1]); err == nil {
				t.Fatalf("without the last byte: %+v", s)
			}
		}
	})
}

// FuzzDecode checks that decoding never panics, and gives valid sketches only, which are stored as they were read.
func FuzzDecode(f *testing.F) {
	s := &connection.Sketch{Missed: 300}
	s.Add(connection.Edge{Peer: netip.MustParseAddr("10.0.0.1"), Port: 443, Protocol: 6, Listens: true, Class: 1}, connection.Traffic{RxBytes: 1 << 40, TxPackets: 3})
	s.Add(connection.Edge{Peer: netip.MustParseAddr("fd00::1")}, connection.Traffic{TxBytes: 200})
	b := connection.Encode(s)
	f.Add(b)
	f.Add(append(b, 0))
	f.Add([]byte{2, 0})
	f.Add([]byte{1, 0, 4, 1, 2, 3, 4})
	f.Add(append([]byte{1}, bytes.Repeat([]byte{0xff}, 10)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := connection.Decode(b)
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		again, err := connection.Decode(connection.Encode(s))
		if d := cmp.Diff(s, again, cmpopts.EquateComparable(netip.Addr{})); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	})
}

// TestDecodeRefuses checks that numbers are refused that do not fit.
func TestDecodeRefuses(t *testing.T) {
	edge := func(port, bytes uint64) []byte {
		b := binary.AppendUvarint([]byte{1, 0, 0, 10, 0, 0, 1, 6, 1}, port)
		return append(binary.AppendUvarint(b, bytes), 0, 0, 0, 0)
	}
	if s, err := connection.Decode(edge(1<<16-1, 1<<63-1)); err != nil || s.Entries[0].Port != 1<<16-1 {
		t.Errorf("%+v, %v", s, err)
	}
	short := edge(1<<16, 1)
	short = short[:len(short)-1] // it would be whole if the port were an amount
	for _, b := range [][]byte{edge(1<<16, 1), short, edge(1, 1<<63)} {
		if s, err := connection.Decode(b); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v, %v", s, err)
		}
	}
}
