package net

import (
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
)

// How many edges a sketch may have while it is filled, and for how many keys traffic waits for an owner.
const (
	mostEdges  = 8 * connection.Top
	maxWaiting = 256
)

// waiting is traffic of a key that has no owner yet: as its group counts it, and as its interfaces do.
type waiting struct {
	by   [2]byOther
	ends int // of windows, since
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
			x.addEdge(e, n, ofInterface)
			return
		}
		w := c.waiting[e.Of]
		if w == nil {
			if len(c.waiting) == maxWaiting {
				return
			}
			w = &waiting{}
			c.waiting[e.Of] = w
		}
		w.by[0].addEdge(e, n, false)
		w.by[1].addEdge(e, n, true)
	})
	return err
}

func (x *byOther) sketch() *connection.Sketch {
	if x.edges == nil {
		x.edges = &connection.Sketch{}
	}
	return x.edges
}

// addEdge adds the traffic of an edge, and to the class of it.
func (x *byOther) addEdge(e bpf.Edge, n *bpf.EdgeTraffic, ofInterface bool) {
	rx, tx := int64(n.Received.Wire), int64(n.Sent.Wire)
	if ofInterface {
		rx, tx = int64(n.Received.Interface), int64(n.Sent.Interface)
	}
	class := usage.NetworkClass(n.Class)
	if class != usage.Unclassified {
		x.addClass(class.Rx(), rx)
		x.addClass(class.Tx(), tx)
	}
	s := x.sketch()
	s.Add(connection.Edge{Peer: e.Peer, Port: e.Port, Protocol: e.Protocol, Listens: e.Listens, Class: uint8(class)},
		connection.Traffic{RxBytes: rx, TxBytes: tx, RxPackets: int64(n.Received.Packets), TxPackets: int64(n.Sent.Packets)})
	if len(s.Entries) >= mostEdges {
		s.Limit(connection.Top)
	}
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
	}
}

// showConnections puts the traffic by peer that is not booked into x's reading.
func (t *Table) showConnections(x *target) {
	if x.edges != nil {
		if x.shown != nil {
			x.edges.Merge(*x.shown)
		}
		x.edges.Limit(connection.Top)
		x.shown, x.edges = x.edges, nil
	}
	if x.reading.Connections = x.shown; x.shown != nil {
		t.classes.shown = true
	}
}
