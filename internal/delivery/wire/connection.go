package wire

import (
	"math"
	"net/netip"
	"slices"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

// connectionsMessage puts the connections of all rows into columns; it is nil without any. Of more edges than the limit, those of the
// latest rows stay.
func connectionsMessage(windows []usage.Window) *proto.Connections {
	left := Default().Edges
	first := 0 // row whose connections stay
	for i := range windows {
		first += len(windows[i].Rows)
	}
	eachRowBackward(windows, func(row int, r *usage.Row) bool {
		if r.Connections == nil {
			return true
		}
		if left -= len(r.Connections.Entries); left >= 0 {
			first = row
		}
		return left >= 0
	})
	var kept []*connection.Sketch // nil for other rows
	for i := range windows {
		for j := range windows[i].Rows {
			s := windows[i].Rows[j].Connections
			if len(kept) < first {
				s = nil
			}
			kept = append(kept, s)
		}
	}
	return sketchesMessage(kept)
}

// sketchesMessage puts the connections of rows, which are nil where a row has none, into columns; it is nil without any.
func sketchesMessage(rows []*connection.Sketch) *proto.Connections {
	m := &proto.Connections{}
	var peers []netip.Addr
	next := 0
	for i, s := range rows {
		if s == nil {
			continue
		}
		for k := range s.Entries {
			peers = append(peers, s.Entries[k].Peer)
		}
		m.Rows, m.Edges, m.Missed = append(m.Rows, uint32(i-next)), append(m.Edges, uint32(len(s.Entries))), append(m.Missed, uint64(s.Missed))
		next = i + 1
	}
	if len(m.Rows) == 0 {
		return nil
	}
	slices.SortFunc(peers, netip.Addr.Compare) // those of 4 bytes first
	peers = slices.Compact(peers)
	for _, p := range peers {
		if p.Is4() {
			m.Peers = append(m.Peers, p.AsSlice()...)
		} else {
			m.Peers6 = append(m.Peers6, p.AsSlice()...)
		}
	}
	for _, s := range rows {
		for i := 0; s != nil && i < len(s.Entries); i++ {
			appendEdge(m, &s.Entries[i], peers)
		}
	}
	m.Missed, m.Error = omitZeros(m.Missed), omitZeros(m.Error)
	return m
}

// eachRowBackward calls f for each row, the last one first, with its place, until f returns false.
func eachRowBackward(windows []usage.Window, f func(row int, r *usage.Row) bool) {
	n := 0
	for i := range windows {
		n += len(windows[i].Rows)
	}
	for i := len(windows) - 1; i >= 0; i-- {
		for j := len(windows[i].Rows) - 1; j >= 0; j-- {
			if n--; !f(n, &windows[i].Rows[j]) {
				return
			}
		}
	}
}

func appendEdge(m *proto.Connections, e *connection.Entry, peers []netip.Addr) {
	place, _ := slices.BinarySearchFunc(peers, e.Peer, netip.Addr.Compare)
	m.Peer, m.Port, m.Protocol = append(m.Peer, uint32(place)), append(m.Port, uint32(e.Port)), append(m.Protocol, uint32(e.Protocol))
	m.Listens, m.Class = append(m.Listens, e.Listens), append(m.Class, uint32(e.Class))
	m.RxBytes, m.TxBytes = append(m.RxBytes, uint64(e.RxBytes)), append(m.TxBytes, uint64(e.TxBytes))
	m.RxPackets, m.TxPackets, m.Error = append(m.RxPackets, uint64(e.RxPackets)), append(m.TxPackets, uint64(e.TxPackets)), append(m.Error, uint64(e.Error))
}

// connectionsFrom reads the connections of the rows of windows.
func connectionsFrom(windows []usage.Window, m *proto.Connections, l Limits) error {
	var rows []*usage.Row
	for i := range windows {
		for j := range windows[i].Rows {
			rows = append(rows, &windows[i].Rows[j])
		}
	}
	return sketchesFrom(m, len(rows), l, func(row int, s *connection.Sketch) { rows[row].Connections = s })
}

// sketchesFrom calls put for the connections of each of a number of rows that has some.
func sketchesFrom(m *proto.Connections, rows int, l Limits, put func(row int, s *connection.Sketch)) error {
	if m == nil {
		return nil
	}
	if err := checkEdges(m, l); err != nil {
		return err
	}
	peers := make([]netip.Addr, 0, len(m.Peers)/4+len(m.Peers6)/16)
	for b := range slices.Chunk(m.Peers, 4) {
		peers = append(peers, netip.AddrFrom4([4]byte(b)))
	}
	for b := range slices.Chunk(m.Peers6, 16) {
		peers = append(peers, netip.AddrFrom16([16]byte(b)))
	}
	entries := make([]connection.Entry, len(m.Peer))
	for i := range entries {
		e := &entries[i]
		if int64(m.Peer[i]) >= int64(len(peers)) {
			return invalid("edge %d has peer %d of %d", i, m.Peer[i], len(peers))
		}
		if m.Port[i] > math.MaxUint16 || m.Protocol[i] > math.MaxUint8 {
			return invalid("edge %d has port %d of protocol %d", i, m.Port[i], m.Protocol[i])
		}
		if m.Class[i] >= uint32(usage.NetworkClassLimit) {
			return newerError("class %d is unknown", m.Class[i])
		}
		e.Edge = connection.Edge{Peer: peers[m.Peer[i]], Port: uint16(m.Port[i]), Protocol: uint8(m.Protocol[i]), Listens: m.Listens[i], Class: uint8(m.Class[i])}
		e.Traffic = connection.Traffic{RxBytes: int64(m.RxBytes[i]), TxBytes: int64(m.TxBytes[i]), RxPackets: int64(m.RxPackets[i]), TxPackets: int64(m.TxPackets[i])}
		e.Error = int64(elementAt(m.Error, i))
	}
	place := int64(-1)
	for i, n := range m.Edges {
		if place += 1 + int64(m.Rows[i]); place >= int64(rows) {
			return invalid("sketch %d is of row %d of %d", i, place, rows)
		}
		if int64(n) > int64(len(entries)) {
			return invalid("row %d has %d edges, %d are left", place, n, len(entries))
		}
		s := &connection.Sketch{Entries: entries[:n:n], Missed: int64(elementAt(m.Missed, i))}
		entries = entries[n:]
		if err := s.Validate(); err != nil {
			return invalid("row %d: %v", place, err)
		}
		put(int(place), s)
	}
	if len(entries) > 0 {
		return invalid("%d edges are of no row", len(entries))
	}
	return nil
}

// checkEdges refuses columns of different lengths, and too many edges.
func checkEdges(m *proto.Connections, l Limits) error {
	n := len(m.Peer)
	if n > l.Edges {
		return invalid("%d edges, more than %d", n, l.Edges)
	}
	if p := len(m.Peers)/4 + len(m.Peers6)/16; len(m.Peers)%4 != 0 || len(m.Peers6)%16 != 0 || p > n {
		return invalid("%d bytes of IPv4 addresses and %d of IPv6 addresses for %d edges", len(m.Peers), len(m.Peers6), n)
	}
	for _, length := range [...]int{len(m.Port), len(m.Protocol), len(m.Listens), len(m.Class), len(m.RxBytes), len(m.TxBytes), len(m.RxPackets), len(m.TxPackets)} {
		if length != n {
			return invalid("a column of %d numbers for %d edges", length, n)
		}
	}
	if !isComplete(m.Error, n) {
		return invalid("%d errors for %d edges", len(m.Error), n)
	}
	if len(m.Rows) != len(m.Edges) || !isComplete(m.Missed, len(m.Edges)) {
		return invalid("%d rows and %d missed for %d numbers of edges", len(m.Rows), len(m.Missed), len(m.Edges))
	}
	return nil
}
