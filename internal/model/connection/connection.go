// Package connection has the types of whom a workload talks to, and a sketch that keeps the largest of them.
//
// All connections of a workload with one peer to one port are an edge. A workload may have any number of edges, so a
// [Sketch] keeps some, by the algorithm Space-Saving of A. Metwally, D. Agrawal and A. El Abbadi, Efficient
// Computation of Frequent and Top-k Elements in Data Streams (ICDT 2005). Sketches are merged as in P. Agarwal,
// G. Cormode, Z. Huang, J. Phillips, Z. Wei and K. Yi, Mergeable Summaries (PODS 2012), which keeps the bound of the error.
//
// Space-Saving gives what is new the count of what it replaces. Here that part is stated apart, as the error, so that an
// amount is never more than what was measured, and the amounts and a rest sum to the whole.
package connection

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"mete.dev/mete/internal/model/fault"
)

// Top is how many edges of a workload are kept, of a window as of an hour.
const Top = 20

// An Edge is all connections of a workload with a peer to one port.
type Edge struct {
	// Peer is the address of the other end: of the real end, where the machine translates the address that the workload
	// sees and knows the real one.
	Peer netip.Addr
	// Port is that of the end that listens, 0 where the protocol has no ports.
	Port uint16
	// Protocol has its number in IP: 6 for TCP, 17 for UDP.
	Protocol uint8
	// Listens says that the port is the workload's, so that the peer opened the connections.
	Listens bool
	// Class says where the peer is, by a number of usage.NetworkClass.
	Class uint8
}

// Compare orders edges.
func (e Edge) Compare(o Edge) int {
	return cmp.Or(e.Peer.Compare(o.Peer), cmp.Compare(e.Port, o.Port), cmp.Compare(e.Protocol, o.Protocol),
		compareBool(e.Listens, o.Listens), cmp.Compare(e.Class, o.Class))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Traffic is an amount of traffic.
type Traffic struct{ RxBytes, TxBytes, RxPackets, TxPackets int64 }

// Plus returns the sum of two amounts.
func (t Traffic) Plus(o Traffic) Traffic {
	return Traffic{t.RxBytes + o.RxBytes, t.TxBytes + o.TxBytes, t.RxPackets + o.RxPackets, t.TxPackets + o.TxPackets}
}

// Bytes returns the bytes in both directions, by which edges are compared.
func (t Traffic) Bytes() int64 { return t.RxBytes + t.TxBytes }

// An Entry is an edge of a sketch.
type Entry struct {
	Edge
	// Traffic is what was added for the edge since the sketch has it.
	Traffic
	// Error is the most bytes, in both directions, by which the edge may have had more.
	Error int64
}

// most returns the most bytes that the edge may have had.
func (e Entry) most() int64 { return e.Bytes() + e.Error }

// A Sketch keeps the largest edges of a workload. Traffic that was added and is in no entry is the rest: the whole, which
// the sketch does not know, less the entries. The zero value is empty.
//
// An edge in a sketch has had at least its Bytes and at most Error more. Any other edge has had at most Missed. With n
// bytes added in all, by any sequence of Add, Merge and Limit(k), Missed is at most n/(k+1), and no Error is larger; both are
// larger by what Miss was called with.
type Sketch struct {
	Entries []Entry // sorted by edge
	Missed  int64   // bytes
}

// Add adds traffic of an edge.
func (s *Sketch) Add(e Edge, t Traffic) {
	i, ok := s.find(e)
	if !ok {
		s.Entries = slices.Insert(s.Entries, i, Entry{Edge: e, Error: s.Missed})
	}
	s.Entries[i].Traffic = s.Entries[i].Plus(t)
}

// Miss says that a number of bytes was seen whose edges are not known.
func (s *Sketch) Miss(bytes int64) { s.Merge(Sketch{Missed: bytes}) }

// Merge adds all that was added to another sketch.
func (s *Sketch) Merge(o Sketch) {
	for i := range s.Entries {
		s.Entries[i].Error += o.Missed
	}
	for _, e := range o.Entries {
		if i, ok := s.find(e.Edge); ok {
			s.Entries[i].Traffic = s.Entries[i].Plus(e.Traffic)
			s.Entries[i].Error += e.Error - o.Missed
		} else {
			e.Error += s.Missed
			s.Entries = slices.Insert(s.Entries, i, e)
		}
	}
	s.Missed += o.Missed
}

// Merged returns a sketch of at most [Top] entries with all that was added to two others of that size, of which either may be nil. It
// changes neither, and may be one of them.
func Merged(a, b *Sketch) *Sketch {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	sum := Sketch{Entries: slices.Clone(a.Entries), Missed: a.Missed}
	sum.Merge(*b)
	sum.Limit(Top)
	return &sum
}

func (s *Sketch) find(e Edge) (i int, ok bool) {
	return slices.BinarySearchFunc(s.Entries, e, func(x Entry, e Edge) int { return x.Compare(e) })
}

// Limit keeps the k entries that may be the largest. Others are in the rest from then on.
func (s *Sketch) Limit(k int) {
	if len(s.Entries) <= k {
		return
	}
	slices.SortFunc(s.Entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.most(), a.most()), a.Compare(b.Edge)) })
	s.Missed = max(s.Missed, s.Entries[k].most()) // an entry may have had less than Missed once it was lowered
	clear(s.Entries[k:])
	s.Entries = s.Entries[:k]
	slices.SortFunc(s.Entries, func(a, b Entry) int { return a.Compare(b.Edge) })
}

// Trim limits a sketch to [Top] entries once it has eight times as many. While a sketch is filled, that takes less time than a limit after each addition.
func (s *Sketch) Trim() {
	if len(s.Entries) >= 8*Top {
		s.Limit(Top)
	}
}

// Sum returns the traffic of all entries.
func (s *Sketch) Sum() (sum Traffic) {
	for _, e := range s.Entries {
		sum = sum.Plus(e.Traffic)
	}
	return sum
}

// Validate returns an error that wraps fault.ErrInvalid if s has more than [Top] edges, edges that are not in order, an address that no peer
// has, a negative amount, an error above Missed, or a sum that does not fit.
func (s *Sketch) Validate() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, fault.ErrInvalid)...)
	}
	if len(s.Entries) > Top {
		return invalid("%d edges, more than %d", len(s.Entries), Top)
	}
	if s.Missed < 0 {
		return invalid("missed %d bytes", s.Missed)
	}
	left := int64(math.MaxInt64) // of what fits, for all amounts together
	for i := range s.Entries {
		e := &s.Entries[i]
		switch {
		case !e.Peer.IsValid() || e.Peer.Is4In6() || e.Peer.Zone() != "":
			return invalid("edge %d has the peer %v", i, e.Peer)
		case i > 0 && s.Entries[i-1].Compare(e.Edge) >= 0:
			return invalid("edge %d is not after the previous one", i)
		case e.Error < 0 || e.Error > s.Missed:
			return invalid("edge %d has an error of %d, and %d are missed", i, e.Error, s.Missed)
		}
		for _, n := range [...]int64{e.RxBytes, e.TxBytes, e.RxPackets, e.TxPackets} {
			if n < 0 || n > left {
				return invalid("edge %d has %+v", i, e.Traffic)
			}
			left -= n
		}
	}
	return nil
}

// IsWithin reports whether a valid sketch has no more than a whole, in each direction, and has missed no more than the rest of it. A sketch
// that was merged of such ones, and limited, is within the sum of their wholes.
func (s *Sketch) IsWithin(whole Traffic) bool {
	n := s.Sum()
	return n.RxBytes <= whole.RxBytes && n.TxBytes <= whole.TxBytes && n.RxPackets <= whole.RxPackets && n.TxPackets <= whole.TxPackets &&
		(s.Missed <= whole.RxBytes-n.RxBytes || s.Missed-(whole.RxBytes-n.RxBytes) <= whole.TxBytes-n.TxBytes)
}
