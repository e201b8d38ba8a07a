package connection_test

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
)

// TestValidate checks at its edges what a sketch may have.
func TestValidate(t *testing.T) {
	one := func(e connection.Entry) connection.Sketch {
		return connection.Sketch{Missed: 5, Entries: []connection.Entry{e}}
	}
	of := func(peer string) connection.Edge { return connection.Edge{Peer: netip.MustParseAddr(peer)} }
	edges := func(n int) (s connection.Sketch) {
		for i := range n {
			s.Add(edge(i), connection.Traffic{RxBytes: 1})
		}
		return s
	}
	const most = math.MaxInt64
	for name, c := range map[string]struct {
		sketch connection.Sketch
		ok     bool
	}{
		"nothing":              {connection.Sketch{}, true},
		"as many edges":        {edges(connection.Top), true},
		"more edges":           {edges(connection.Top + 1), false},
		"the most missed":      {connection.Sketch{Missed: most}, true},
		"less than 0 missed":   {connection.Sketch{Missed: -1}, false},
		"no peer":              {one(connection.Entry{}), false},
		"IPv4 in IPv6":         {one(connection.Entry{Edge: of("::ffff:10.0.0.1")}), false},
		"a zone":               {one(connection.Entry{Edge: of("fe80::1%eth0")}), false},
		"an edge of no bytes":  {one(connection.Entry{Edge: of("10.0.0.1")}), true},
		"an edge twice":        {connection.Sketch{Entries: []connection.Entry{{Edge: of("10.0.0.1")}, {Edge: of("10.0.0.1")}}}, false},
		"in order":             {connection.Sketch{Entries: []connection.Entry{{Edge: of("10.0.0.1")}, {Edge: of("10.0.0.2")}}}, true},
		"out of order":         {connection.Sketch{Entries: []connection.Entry{{Edge: of("10.0.0.2")}, {Edge: of("10.0.0.1")}}}, false},
		"the largest error":    {one(connection.Entry{Edge: of("10.0.0.1"), Error: 5}), true},
		"a larger error":       {one(connection.Entry{Edge: of("10.0.0.1"), Error: 6}), false},
		"an error below 0":     {one(connection.Entry{Edge: of("10.0.0.1"), Error: -1}), false},
		"the largest amounts":  {one(connection.Entry{Edge: of("10.0.0.1"), Traffic: connection.Traffic{RxBytes: most - 3, TxBytes: 1, RxPackets: 1, TxPackets: 1}}), true},
		"larger amounts":       {one(connection.Entry{Edge: of("10.0.0.1"), Traffic: connection.Traffic{RxBytes: most - 3, TxBytes: 1, RxPackets: 1, TxPackets: 2}}), false},
		"an amount below 0":    {one(connection.Entry{Edge: of("10.0.0.1"), Traffic: connection.Traffic{TxPackets: -1}}), false},
		"the second one is it": {connection.Sketch{Entries: []connection.Entry{{Edge: of("10.0.0.1")}, {Edge: of("10.0.0.2"), Traffic: connection.Traffic{RxPackets: -1}}}}, false},
	} {
		if err := c.sketch.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIsWithin checks that a sketch may have all of a whole, and no more in any direction.
func TestIsWithin(t *testing.T) {
	n := connection.Traffic{RxBytes: 10, TxBytes: 20, RxPackets: 3, TxPackets: 4}
	for name, c := range map[string]struct {
		whole  connection.Traffic
		missed int64
		ok     bool
	}{
		"all":                       {n, 0, true},
		"less received":             {connection.Traffic{RxBytes: 9, TxBytes: 20, RxPackets: 3, TxPackets: 4}, 0, false},
		"less sent":                 {connection.Traffic{RxBytes: 10, TxBytes: 19, RxPackets: 3, TxPackets: 4}, 0, false},
		"fewer packets received":    {connection.Traffic{RxBytes: 10, TxBytes: 20, RxPackets: 2, TxPackets: 4}, 0, false},
		"fewer packets sent":        {connection.Traffic{RxBytes: 10, TxBytes: 20, RxPackets: 3, TxPackets: 3}, 0, false},
		"more":                      {connection.Traffic{RxBytes: 11, TxBytes: 22, RxPackets: 5, TxPackets: 5}, 0, true},
		"a byte missed":             {n, 1, false},
		"as many received missed":   {connection.Traffic{RxBytes: 15, TxBytes: 20, RxPackets: 3, TxPackets: 4}, 5, true},
		"as many sent missed":       {connection.Traffic{RxBytes: 10, TxBytes: 25, RxPackets: 3, TxPackets: 4}, 5, true},
		"as many of both missed":    {connection.Traffic{RxBytes: 12, TxBytes: 23, RxPackets: 3, TxPackets: 4}, 5, true},
		"more of both missed":       {connection.Traffic{RxBytes: 12, TxBytes: 23, RxPackets: 3, TxPackets: 4}, 6, false},
		"a whole that does not fit": {connection.Traffic{RxBytes: math.MaxInt64, TxBytes: math.MaxInt64, RxPackets: 3, TxPackets: 4}, math.MaxInt64, true},
	} {
		s := connection.Sketch{Missed: c.missed, Entries: []connection.Entry{{Edge: edge(1), Traffic: n}}}
		if got := s.IsWithin(c.whole); got != c.ok {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestTrim checks that a sketch is limited once it has eight times as many edges as are kept.
func TestTrim(t *testing.T) {
	var s connection.Sketch
	for i := range 8 * connection.Top {
		if len(s.Entries) != i || s.Missed != 0 {
			t.Fatalf("%d edges of %d, missed %d", len(s.Entries), i, s.Missed)
		}
		s.Add(edge(i), connection.Traffic{RxBytes: 1})
		s.Trim()
	}
	if len(s.Entries) != connection.Top || s.Missed != 1 {
		t.Errorf("%d edges, missed %d", len(s.Entries), s.Missed)
	}
}

// TestCompare checks the order of edges: by peer, port, protocol, who listens and class.
func TestCompare(t *testing.T) {
	of := func(peer string, port uint16, protocol uint8, listens bool, class uint8) connection.Edge {
		return connection.Edge{Peer: netip.MustParseAddr(peer), Port: port, Protocol: protocol, Listens: listens, Class: class}
	}
	all := []connection.Edge{of("10.0.0.1", 9, 9, true, 9), of("10.0.0.2", 1, 9, true, 9), of("10.0.0.2", 2, 1, true, 9), of("10.0.0.2", 2, 2, false, 9), of("10.0.0.2", 2, 2, true, 1), of("10.0.0.2", 2, 2, true, 2)}
	for i, a := range all {
		for j, b := range all {
			if got, want := a.Compare(b), map[bool]int{true: 1, false: -1}[i > j]; i != j && got != want || i == j && got != 0 {
				t.Errorf("%+v and %+v: %d", a, b, got)
			}
		}
	}
}

// TestDecodeParts checks that a part of a sketch that ends within an edge is refused, as are bits that are not known.
func TestDecodeParts(t *testing.T) {
	whole := connection.Sketch{Missed: 300}
	for i, peer := range []string{"10.0.0.1", "fd00::1"} {
		whole.Add(connection.Edge{Peer: netip.MustParseAddr(peer), Port: 80, Listens: i == 1}, connection.Traffic{RxBytes: 7})
	}
	b := connection.Encode(&whole)
	ends := []int{3, len(connection.Encode(&connection.Sketch{Missed: 300, Entries: whole.Entries[:1]})), len(b)}
	for n := range len(b) + 1 {
		s, err := connection.Decode(b[:n])
		if ok := slices.Contains(ends, n); (err == nil) != ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%d of %d bytes: %v, %v", n, len(b), s, err)
		}
	}
	b[3] |= 4
	if s, err := connection.Decode(b); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another bit: %v, %v", s, err)
	}
	if s, err := connection.Decode([]byte{1, 0}); err != nil || s.Entries != nil {
		t.Errorf("of nothing: %v, %v", s, err)
	}
}
