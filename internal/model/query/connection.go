package query

import (
	"cmp"
	"slices"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Connections are the peers with which workloads exchanged network traffic: the answer to a [Query], of which Top, Resources,
// Unused, Idle, Nested and After have no effect, and Limit is the maximum number of edges.
type Connections struct {
	From, To time.Time // whole hours, or whole days where hours are no longer kept
	By       []Dimension
	Edges    []Edge // the largest first
	// Traffic is what the same workloads received and sent in the range, whether its edges are known or not. Edges and Rest sum
	// to it.
	Traffic Total
	// Missed is the most bytes that any edge may have had that is not in Edges, of the hours of workloads that have connections.
	Missed int64
}

// An Edge is all connections of the workloads of a group with one peer to one port.
type Edge struct {
	Keys []string // in the order of By; "" means no value
	connection.Entry
}

// Compare orders the edge with more bytes first, and equal ones by keys.
func (e *Edge) Compare(o *Edge) int {
	return cmp.Or(cmp.Compare(o.Bytes(), e.Bytes()), slices.Compare(e.Keys, o.Keys), e.Edge.Compare(o.Edge))
}

// Rest returns the bytes of Traffic that are of none of Edges.
func (c *Connections) Rest() (rx, tx unit.Sum) {
	rx, tx = c.Traffic.Sum[usage.NetworkRx], c.Traffic.Sum[usage.NetworkTx]
	for i := range c.Edges {
		rx, tx = rx.Less(unit.Sum{}.Add(c.Edges[i].RxBytes)), tx.Less(unit.Sum{}.Add(c.Edges[i].TxBytes))
	}
	return rx, tx
}

// Limit keeps the n largest edges.
func (c *Connections) Limit(n int) {
	slices.SortFunc(c.Edges, func(a, b Edge) int { return a.Compare(&b) })
	for i := n; i < len(c.Edges); i++ {
		c.Missed = max(c.Missed, c.Edges[i].Bytes()+c.Edges[i].Error)
	}
	c.Edges = c.Edges[:min(n, len(c.Edges))]
}
