package walltime

import (
	"time"

	"mete.dev/mete/internal/model/usage"
)

// A CutWindow is a window and where it is cut.
type CutWindow struct {
	*usage.Window
	// Edges are the ends of its pieces. There is one at least, and the last one is the
	// end of the window.
	Edges []Edge
}

// An Edge is an instant at which a window is cut, or its end.
type Edge struct {
	At      int64 // wall time, ns since 1970
	Elapsed int64 // ns of the window that are before it
}

// Began is when the window began in wall time, in ns since 1970.
func (w *CutWindow) Began() int64 { return w.Edges[0].At - w.Edges[0].Elapsed }

// Ended is when the window ended in wall time, in ns since 1970.
func (w *CutWindow) Ended() int64 { return w.Edges[len(w.Edges)-1].At }

// Cumulative is what of a window's total stands before its n-th edge: what stands
// between two edges is the difference.
func (w *CutWindow) Cumulative(total int64, n int) int64 {
	if w.Start == w.End {
		return total
	}
	return portion(total, w.Edges[n].Elapsed, w.End-w.Start)
}

// minute is the first minute that the n-th piece covers, since 1970.
func (w *CutWindow) minute(n int) int64 {
	if n == 0 {
		return w.Began() / minute
	}
	return w.Edges[n-1].At / minute
}

// findEdges finds the edges of windows, where by was added to the stamps of each.
func findEdges(ws []usage.Window, by []time.Duration, tight bool) []CutWindow {
	cut := make([]CutWindow, len(ws))
	var all []Edge // of all windows
	for i := range ws {
		cut[i].Window = &ws[i]
		all = appendEdges(all, &ws[i], int64(by[i]), tight)
	}
	for i := range ws {
		n := 1
		for length := ws[i].End - ws[i].Start; all[n-1].Elapsed < length; {
			n++
		}
		cut[i].Edges, all = all[:n:n], all[n:]
	}
	return cut
}

// appendEdges appends the edges of one window.
func appendEdges(into []Edge, w *usage.Window, by int64, tight bool) []Edge {
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
