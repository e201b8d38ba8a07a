package timeline

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// Clip removes booked time from windows, by added to the stamps of each, and returns the
// windows that are left with what is to be added to their stamps, and the gaps of the batch.
//
// A window keeps the parts that are not booked, each with its portion of the amounts by the rule
// of [Cut], apportioned. But a window that also covers time in which its meter was away is removed
// as a whole, with its gaps: how much of its use is in the booked time is not known. The rest of
// its time is a gap.
func Clip(ws []usage.Window, by []time.Duration, gaps []usage.Gap, booked []batch.Measured) ([]usage.Window, []time.Duration, []usage.Gap) {
	if len(booked) == 0 {
		return ws, by, gaps
	}
	var kept []usage.Window
	var keptBy []time.Duration
	for i := range ws {
		w := &ws[i]
		free := freeParts(w, booked)
		whole := len(free) == 1 && free[0] == [2]int64{w.Start, w.End}
		switch {
		case whole || w.Start == w.End:
			kept, keptBy = append(kept, *w), append(keptBy, by[i])
		case w.StartReason.CoversPause():
			gaps = removeGaps(gaps, Start(w, by[i]), End(w, by[i]))
			for _, f := range free {
				wall := w.Offset + int64(by[i])
				gaps = append(gaps, usage.Gap{From: time.Unix(0, f[0]+wall).UTC(), To: time.Unix(0, f[1]+wall).UTC(), Reason: usage.Overlapped})
			}
		default:
			for _, f := range free {
				kept, keptBy = append(kept, clipWindow(w, f[0], f[1])), append(keptBy, by[i])
			}
		}
	}
	return kept, keptBy, gaps
}

// freeParts returns the parts of a window, from and to, that no range covers.
func freeParts(w *usage.Window, booked []batch.Measured) (free [][2]int64) {
	own := batch.Measured{Boot: w.Boot, Scope: w.Scope, From: w.Start, To: w.End}
	free = [][2]int64{{w.Start, w.End}}
	for _, r := range booked {
		if !own.Overlaps(r) {
			continue
		}
		var left [][2]int64
		for _, f := range free {
			if r.To <= f[0] || f[1] <= r.From {
				left = append(left, f)
				continue
			}
			if f[0] < r.From {
				left = append(left, [2]int64{f[0], r.From})
			}
			if r.To < f[1] {
				left = append(left, [2]int64{r.To, f[1]})
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

// clipWindow returns the part of a window between two instants.
func clipWindow(w *usage.Window, from, to int64) usage.Window {
	p := clipped{w, from - w.Start, to - w.Start}
	c := usage.Window{Boot: w.Boot, Scope: w.Scope, Start: from, End: to, Offset: w.Offset, StartReason: w.StartReason, CPUs: w.CPUs}
	c.Total = p.usage(&w.Total)
	c.Rows = make([]usage.Row, len(w.Rows))
	var rows, before usage.Shares // sums of the rows of the part, and of the window
	for i := range w.Rows {
		r := &w.Rows[i]
		n := usage.Row{ShortID: r.ShortID, Workload: r.Workload, Usage: p.usage(&r.Usage), Has: r.Has, Total: r.Total, Ended: r.Ended && to == w.End}
		for set := r.Has & r.Usage.Present; set != 0; set &= set - 1 {
			k := bits.TrailingZeros64(uint64(set))
			n.Total[k] -= r.Usage.Amount[k] - p.cumulative(r.Usage.Amount[k], p.to)
		}
		for j, k := range usage.Wholes {
			if v, ok := n.Usage.Get(k); ok {
				rows[j] += v
				before[j] += r.Usage.Amount[k]
			}
		}
		c.Rows[i] = n
	}
	b := &w.Balance
	c.Balance.Violations, c.Balance.Lost = p.amount(b.Violations), p.amount(b.Lost)
	for i := range usage.Wholes {
		missing := p.amount(b.Whole[i] + b.Skew[i] - before[i]) // 0 unless the window is broken
		n := &c.Balance
		n.Whole[i], n.System[i], n.Idle[i] = p.amount(b.Whole[i]), p.amount(b.System[i]), p.amount(b.Idle[i])
		n.Skew[i] = rows[i] + missing - n.Whole[i]
		n.Workloads[i] = n.Whole[i] + n.Skew[i] - n.System[i] - n.Idle[i]
	}
	return c
}

// A clipped part of a window is from and to, in ns since its start.
type clipped struct {
	w        *usage.Window
	from, to int64
}

func (p clipped) cumulative(total, at int64) int64 { return portion(total, at, p.w.End-p.w.Start) }

func (p clipped) amount(total int64) int64 {
	return p.cumulative(total, p.to) - p.cumulative(total, p.from)
}

// usage returns the portion of an amount that falls into the part. Peaks may have been in it.
func (p clipped) usage(u *usage.Usage) (c usage.Usage) {
	for set := u.Present; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		v, q := u.Amount[r], max(u.Quality.Get(r), usage.Apportioned)
		if r.Detail().Kind != usage.Peak {
			v = p.amount(v)
		}
		c.Put(r, v, q)
	}
	c.Covered = time.Duration(p.amount(int64(u.Covered)))
	return c
}
