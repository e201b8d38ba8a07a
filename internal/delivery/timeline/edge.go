package timeline

import (
	"time"

	"mete.dev/mete/internal/model/batch"
)

// An Edge is an instant at which a window is cut, or its end.
type Edge struct {
	At   int64 // wall time, ns since 1970
	Past int64 // ns of the window that are before it
}

// Edges appends to into the edges of each of the windows, as Cut cuts them, and
// returns with them where each window's begin. The last edge of a window is its
// end.
func Edges(into []Edge, ws []batch.Window, by []time.Duration) (all []Edge, from []int) {
	tight := pieces(ws, false) > many
	for i := range ws {
		from = append(from, len(into))
		into = edges(into, &ws[i], int64(by[i]), tight)
	}
	return into, from
}

// edges appends the edges of one window.
func edges(into []Edge, w *batch.Window, by int64, tight bool) []Edge {
	start, length, grain := w.Start+w.Offset+by, w.End-w.Start, grain(w, tight)
	for past := int64(0); ; {
		// Wall time is never negative: Judge refuses what is before 1970.
		past = min(length, ((start+past)/grain+1)*grain-start)
		into = append(into, Edge{start + past, past})
		if past == length {
			return into
		}
	}
}

// UpTo is what of a window's total stands before an edge, as Cut has it: what
// stands between two edges is the difference.
func (e Edge) UpTo(total, length int64) int64 {
	if e.Past == length {
		return total
	}
	return portion(total, e.Past, length)
}
