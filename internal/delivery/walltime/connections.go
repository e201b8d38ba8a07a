package walltime

import (
	"cmp"
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A talk is a quarter of an hour of a workload.
type talk struct {
	minute   int64 // the first one, since 1970
	workload workload.ShortID
}

// divideConnections adds the connections of a row to its quarters. The error wraps fault.ErrInvalid: they have more than the
// traffic of the row. Those of a window of more than two hours are left out: it is a pause of its meter, or there would be
// more pieces than connections.
func (c *cutter) divideConnections(w *window, r *usage.Row) error {
	s := r.Connections
	if s == nil {
		return nil
	}
	if err := s.Validate(); err != nil {
		return fmt.Errorf("workload %016x: connections: %w", r.ShortID, err)
	}
	whole := connection.Traffic{RxBytes: r.Usage.Amount[usage.NetworkRx], TxBytes: r.Usage.Amount[usage.NetworkTx],
		RxPackets: r.Usage.Amount[usage.NetworkRxPackets], TxPackets: r.Usage.Amount[usage.NetworkTxPackets]}
	if !s.IsWithin(whole) {
		return fmt.Errorf("workload %016x: connections have more than its traffic: %w", r.ShortID, fault.ErrInvalid)
	}
	if w.End-w.Start > byMinute {
		return nil
	}
	for from, to := 0, 0; from < len(w.Edges); from = to {
		quarter := quarterOf(w.minute(from))
		for to = from + 1; to < len(w.Edges) && quarterOf(w.minute(to)) == quarter; to++ {
		}
		piece := connection.Sketch{Entries: s.Entries, Missed: s.Missed}
		if to-from < len(w.Edges) {
			piece = w.pieceOf(s, whole, from, to)
		}
		c.addConnections(talk{quarter, r.ShortID}, piece)
	}
	return nil
}

// addConnections adds connections to those of a quarter, if there is any traffic of them.
func (c *cutter) addConnections(k talk, s connection.Sketch) {
	if s.Missed == 0 && s.Sum().Bytes() == 0 {
		return
	}
	sum := c.talks[k]
	if sum == nil {
		sum = &connection.Sketch{}
		c.talks[k] = sum
	}
	sum.Merge(s)
	sum.Trim()
}

func quarterOf(minute int64) int64 { return minute - minute%batch.Quarter }

// pieceOf returns what of a sketch stands in the pieces of a window from one up to another one, of which whole is all
// traffic. Each amount is rounded by itself, and a byte or so more than the traffic is left out. Bytes that an
// edge may have had beyond its own are rounded up, but are no more than the rest of the traffic.
func (w *window) pieceOf(s *connection.Sketch, whole connection.Traffic, from, to int) (piece connection.Sketch) {
	part := func(total int64) int64 {
		v := w.Cumulative(total, to-1)
		if from > 0 {
			v -= w.Cumulative(total, from-1)
		}
		return v
	}
	parts := func(t connection.Traffic) connection.Traffic {
		return connection.Traffic{RxBytes: part(t.RxBytes), TxBytes: part(t.TxBytes), RxPackets: part(t.RxPackets), TxPackets: part(t.TxPackets)}
	}
	left := parts(whole)
	span := w.Edges[to-1].Elapsed
	if from > 0 {
		span -= w.Edges[from-1].Elapsed
	}
	for _, e := range s.Entries {
		t := parts(e.Traffic)
		e.Traffic = connection.Traffic{RxBytes: min(t.RxBytes, left.RxBytes), TxBytes: min(t.TxBytes, left.TxBytes),
			RxPackets: min(t.RxPackets, left.RxPackets), TxPackets: min(t.TxPackets, left.TxPackets)}
		left = connection.Traffic{RxBytes: left.RxBytes - e.RxBytes, TxBytes: left.TxBytes - e.TxBytes,
			RxPackets: left.RxPackets - e.RxPackets, TxPackets: left.TxPackets - e.TxPackets}
		if e.Bytes() > 0 {
			piece.Entries = append(piece.Entries, e)
		}
	}
	atMost := func(total int64) int64 { return min(total, portion(total, span, w.End-w.Start)+1, left.Bytes()) }
	piece.Missed = atMost(s.Missed)
	for i := range piece.Entries {
		piece.Entries[i].Error = atMost(piece.Entries[i].Error)
	}
	return piece
}

// sumConnections puts the connections in order.
func (c *cutter) sumConnections() {
	for k, s := range c.talks {
		s.Limit(connection.Top)
		s.Entries = slices.DeleteFunc(s.Entries, func(e connection.Entry) bool { return e.Bytes() == 0 })
		c.Connections = append(c.Connections, batch.Connections{Workload: k.workload, Minute: k.minute, Sketch: s})
	}
	slices.SortFunc(c.Connections, func(a, b batch.Connections) int {
		return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Workload, b.Workload))
	})
}
