package walltime

import (
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// Clip removes windows that measured booked time, by added to the stamps of each, and returns
// those that are left with what is to be added to their stamps, and the gaps of the batch.
//
// A window is removed as a whole: it is not known which of its use is in the booked time, and a part
// of it by time could be more than what the kernel counted then. The rest of its time is a gap. If
// it covered a pause of its meter, the gaps that it explained go too.
func Clip(ws []usage.Window, by []time.Duration, gaps []usage.Gap, booked []batch.Measured) ([]usage.Window, []time.Duration, []usage.Gap) {
	if len(booked) == 0 {
		return ws, by, gaps
	}
	var kept []usage.Window
	var keptBy []time.Duration
	for i := range ws {
		w := &ws[i]
		free := freeParts(w, booked)
		if w.Start == w.End || len(free) == 1 && free[0] == [2]int64{w.Start, w.End} {
			kept, keptBy = append(kept, *w), append(keptBy, by[i])
			continue
		}
		if w.StartReason.CoversPause() {
			gaps = removeGaps(gaps, Start(w, by[i]), End(w, by[i]))
		}
		for _, f := range free {
			wall := w.Offset + int64(by[i])
			gaps = append(gaps, usage.Gap{From: time.Unix(0, f[0]+wall).UTC(), To: time.Unix(0, f[1]+wall).UTC(), Reason: usage.Overlapped})
		}
	}
	return kept, keptBy, gaps
}

// freeParts returns the parts of a window, from and to, that no range covers.
func freeParts(w *usage.Window, booked []batch.Measured) (free [][2]int64) {
	own := batch.Measured{Boot: w.Boot, Extent: usage.Extent{Scope: w.Scope}, From: w.Start, To: w.End}
	free = [][2]int64{{w.Start, w.End}}
	for _, r := range booked {
		if !own.Overlaps(r) {
			continue
		}
		var left [][2]int64
		for _, f := range free {
			if to := min(f[1], r.From); f[0] < to {
				left = append(left, [2]int64{f[0], to})
			}
			if from := max(f[0], r.To); from < f[1] {
				left = append(left, [2]int64{from, f[1]})
			}
		}
		free = left
	}
	return free
}

// removeGaps removes the gaps that a window between two instants explained: of the pause up to
// its first reading, and of the reboot at its start.
func removeGaps(gaps []usage.Gap, from, to time.Time) (left []usage.Gap) {
	for _, g := range gaps {
		explained := (g.Reason == usage.Unwatched || g.Reason == usage.Rebooted) && !g.To.Before(from) && !g.To.After(to)
		if !explained {
			left = append(left, g)
		}
	}
	return left
}
