package timeline

import (
	"time"

	"mete.dev/mete/internal/model/batch"
)

// An Edge is an instant at which a window is cut, or its end.
type Edge struct {
	At      int64 // wall time, ns since 1970
	Elapsed int64 // ns of the window that are before it
}

// Edges appends to into the edges of each of the windows, as Cut cuts them, and
// returns with them where each window's begin. The last edge of a window is its
// end.
func Edges(into []Edge, ws []batch.Window, by []time.Duration) (all []Edge, from []int) {
	tight := countPieces(ws, false) > tightPieces
	for i := range ws {
		from = append(from, len(into))
		into = appendEdges(into, &ws[i], int64(by[i]), tight)
	}
	return into, from
}

// appendEdges appends the edges of one window.
func appendEdges(into []Edge, w *batch.Window, by int64, tight bool) []Edge {
	start, length, grain := w.Start+w.Offset+by, w.End-w.Start, grainOf(w, tight)
	for past := int64(0); ; {
		// Wall time is never negative: Judge refuses what is before 1970.
		past = min(length, ((start+past)/grain+1)*grain-start)
		into = append(into, Edge{start + past, past})
		if past == length {
			return into
		}
	}
}

// Cumulative is what of a window's total stands before an edge, as Cut has it: what
// stands between two edges is the difference.
func (e Edge) Cumulative(total, length int64) int64 {
	if e.Elapsed == length {
		return total
	}
	return portion(total, e.Elapsed, length)
}
