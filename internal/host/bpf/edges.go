package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// MaxEdges is for how many edges there is room between two calls of [Kernel.DrainEdges], and MaxEdgesOf for how many of the
// same sockets, as EDGES_OF_KEY of edges.h.
const (
	MaxEdges   = 1 << 15
	MaxEdgesOf = 2048
)

// An Edge is all connections of some sockets with a peer to one port.
type Edge struct {
	Of ClassKey
	// Peer is the address of the other end: of the real end, where the machine translates the address that the sockets see.
	Peer netip.Addr
	// Port is that of the end that listens, 0 where the protocol has no ports.
	Port uint16
	// Protocol has its number in IP: 6 for TCP, 17 for UDP.
	Protocol uint8
	// Listens says that the port is of these sockets, not of the peer.
	Listens bool
}

// A PacketSize is an amount of traffic in one direction: bytes as [ClassBytes] has them, and packets in the same two ways: an interface
// in memory counts a large packet, which is divided later, once.
type PacketSize struct{ Wire, Interface, Packets, InterfacePackets uint64 }

// EdgeTraffic is the traffic of an edge in both directions.
type EdgeTraffic struct {
	Received, Sent PacketSize
	Class          uint64 // 0 if it has none
}

// edgeKey is struct edge_key of edges.h.
type edgeKey struct {
	Group    uint64
	NetNS    uint32
	Port     [2]byte
	Protocol uint8
	Flags    uint8
	Peer     [16]byte
}

// Flags of an edgeKey.
const (
	edgeSix     = 1
	edgeListens = 2
)

func (k *edgeKey) edge() Edge {
	e := Edge{Of: ClassKey{k.Group, uint64(k.NetNS)}, Port: binary.BigEndian.Uint16(k.Port[:]), Protocol: k.Protocol, Listens: k.Flags&edgeListens != 0}
	if k.Flags&edgeSix != 0 {
		e.Peer = netip.AddrFrom16(k.Peer)
	} else {
		e.Peer = netip.AddrFrom4([4]byte(k.Peer[:4]))
	}
	return e
}

// edgeBatch is how many edges one system call fetches.
const edgeBatch = 128

// DrainEdges calls f with the traffic by edge since the last call, and makes room for new edges. f must not keep the traffic.
// Traffic that finds no room is in [Kernel.ClassCounts]. A packet that passes while its edge is read may be lost.
func (k *Kernel) DrainEdges(f func(Edge, *EdgeTraffic)) error {
	if err := k.Err(Connections); err != nil {
		return err
	}
	c := &k.count
	if c.edgeKeys == nil {
		c.edgeKeys, c.edges = make([]edgeKey, edgeBatch), make([]EdgeTraffic, edgeBatch)
	}
	err := drain(c.maps["edges"], c.edgeKeys, c.edges, func(n int) {
		for i := range n {
			f(c.edgeKeys[i].edge(), &c.edges[i])
		}
	})
	var of [edgeBatch]ClassKey
	var numbers [edgeBatch]uint64
	if err = errors.Join(err, drain(c.maps["edges_of"], of[:], numbers[:], func(int) {})); err != nil {
		return fmt.Errorf("bpf: traffic by peer: %w", classify(err))
	}
	return nil
}

// drain removes all entries of a map, and calls f with the number of those that are in keys and values.
func drain[K, V any](m *ebpf.Map, keys []K, values []V, f func(n int)) error {
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookupAndDelete(&cursor, keys, values, nil)
		f(n)
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return err
		}
	}
}
