package connection

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"mete.dev/mete/internal/model/fault"
)

// sketchVersion is that of the bytes of a sketch.
const sketchVersion = 1

// minEdge is the least number of bytes of an edge.
const minEdge = 13

// Bits of the first byte of an edge.
const (
	edgeListens = 1 << iota
	edgeIPv6
)

// Encode returns a valid sketch as the ledger stores it: the version, what is missed, and of each edge its bits,
// address, protocol, class, port, amounts and error. Numbers are unsigned varints but for bits, protocol and class, which are bytes.
func Encode(s *Sketch) []byte {
	b := binary.AppendUvarint([]byte{sketchVersion}, uint64(s.Missed))
	for _, e := range s.Entries {
		bits := byte(0)
		if e.Listens {
			bits |= edgeListens
		}
		if !e.Peer.Is4() {
			bits |= edgeIPv6
		}
		b = append(append(append(b, bits), e.Peer.AsSlice()...), e.Protocol, e.Class)
		b = binary.AppendUvarint(b, uint64(e.Port))
		for _, n := range [...]int64{e.RxBytes, e.TxBytes, e.RxPackets, e.TxPackets, e.Error} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// Decode returns the sketch that Encode wrote. The error wraps fault.ErrInvalid.
func Decode(b []byte) (*Sketch, error) {
	invalid := fmt.Errorf("a sketch of %d bytes: %w", len(b), fault.ErrInvalid)
	if len(b) == 0 || b[0] != sketchVersion {
		return nil, invalid
	}
	b = b[1:]
	number := func(most int64) (v int64) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(most) {
			b = nil
			return -1
		}
		b = b[size:]
		return int64(n)
	}
	s := &Sketch{Missed: number(math.MaxInt64)}
	if len(b) > 0 {
		s.Entries = make([]Entry, 0, min(Top, 1+len(b)/minEdge))
	}
	for s.Missed >= 0 && len(b) > 0 {
		bits, size := b[0], 4
		if bits&edgeIPv6 != 0 {
			size = 16
		}
		if len(b) < size+3 || bits > edgeListens|edgeIPv6 {
			return nil, invalid
		}
		var e Entry
		e.Peer, _ = netip.AddrFromSlice(b[1 : size+1])
		e.Listens, e.Protocol, e.Class, b = bits&edgeListens != 0, b[size+1], b[size+2], b[size+3:]
		port := number(math.MaxUint16)
		for _, n := range [...]*int64{&e.RxBytes, &e.TxBytes, &e.RxPackets, &e.TxPackets, &e.Error} {
			*n = number(math.MaxInt64)
		}
		if e.Error < 0 {
			return nil, invalid
		}
		e.Port = uint16(port)
		s.Entries = append(s.Entries, e)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s, nil
}
