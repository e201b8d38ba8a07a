package net

import (
	"slices"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
)

// maxWaiting is for how many keys traffic waits for an owner by edge. That of others waits by class: there may be as many keys as the
// kernel has room for edges.
const maxWaiting = 256

// waiting is traffic of a key that has no owner yet: as its group counts it, and as its interfaces do.
type waiting struct {
	by      [2]byOther
	byClass bool
	ends    int // of windows, since
}

// readEdges adds the traffic by peer since the latest reading to its owners, with the classes of it. edge says that a
// window ends.
func (t *Table) readEdges(edge bool) error {
	c := t.classes
	for k, w := range c.waiting {
		if x, ofInterface := t.ownerOf(k); x != nil {
			from := &w.by[0]
			if ofInterface {
				from = &w.by[1]
			}
			x.take(from)
			delete(c.waiting, k)
		} else if edge {
			if w.ends++; w.ends >= strangeEdges {
				delete(c.waiting, k)
			}
		}
	}
	err := c.counter.DrainEdges(func(e bpf.Edge, n *bpf.EdgeTraffic) {
		if x, ofInterface := t.ownerOf(e.Of); x != nil {
			x.addEdge(e, n, ofInterface, false)
			return
		}
		w := c.waiting[e.Of]
		if w == nil {
			w = &waiting{byClass: len(c.waiting) >= maxWaiting}
			c.waiting[e.Of] = w
		}
		w.by[0].addEdge(e, n, false, w.byClass)
		w.by[1].addEdge(e, n, true, w.byClass)
	})
	return err
}

func (x *byOther) sketch() *connection.Sketch {
	if x.edges == nil {
		x.edges = &connection.Sketch{}
	}
	return x.edges
}

// addEdge adds the traffic of an edge, and to the class of it; with byClass to that alone. A peer with an address of IPv4 in IPv6, which no
// packet may have, is none: any program can write such a packet.
func (x *byOther) addEdge(e bpf.Edge, n *bpf.EdgeTraffic, ofInterface, byClass bool) {
	rx, tx, rxPackets, txPackets := int64(n.Received.Wire), int64(n.Sent.Wire), int64(n.Received.Packets), int64(n.Sent.Packets)
	if ofInterface {
		rx, tx, rxPackets, txPackets = int64(n.Received.Interface), int64(n.Sent.Interface), int64(n.Received.InterfacePackets), int64(n.Sent.InterfacePackets)
	}
	class := usage.NetworkClass(n.Class)
	if class != usage.Unclassified {
		x.addClass(class.Rx(), rx)
		x.addClass(class.Tx(), tx)
	}
	s := x.sketch()
	if byClass || e.Peer.Is4In6() {
		s.Miss(rx + tx)
		return
	}
	s.Add(connection.Edge{Peer: e.Peer, Port: e.Port, Protocol: e.Protocol, Listens: e.Listens, Class: uint8(class)},
		connection.Traffic{RxBytes: rx, TxBytes: tx, RxPackets: rxPackets, TxPackets: txPackets})
	s.Trim()
}

// take adds the traffic by class and by peer of another one.
func (x *byOther) take(from *byOther) {
	if from.classes != nil {
		for r, n := range from.classes.All() {
			x.addClass(r, n)
		}
	}
	if from.edges != nil {
		x.sketch().Merge(*from.edges)
		x.edges.Trim()
	}
}

// showConnections puts the traffic by peer that is not booked into x's reading.
func (t *Table) showConnections(x *target) {
	if x.edges != nil {
		if x.shown != nil {
			x.edges.Merge(*x.shown)
		}
		x.edges.Limit(connection.Top)
		x.edges.Entries = slices.Clone(x.edges.Entries) // without the room that it was filled in
		x.shown, x.edges = x.edges, nil
	}
	if x.reading.Connections = x.shown; x.shown != nil {
		t.classes.shown = true
	}
}
