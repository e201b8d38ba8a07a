package usage

import (
	"cmp"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/workload"
)

// Merge adds the window after w to w, which then spans both: what workloads used
// adds, row by row of the same workload and life, and of peaks the higher stays.
//
// Rows that are not in next stand first, as their workloads have ended, and then
// those of next in its order, as in any window of an agent: so system and idle
// stay last. The row of a life that has ended gets no more use: a workload that is started
// again has a row for each life. Whole lives of one workload, of which rows do not say more, share one row, so that
// the rows of what is restarted all the time do not grow without limit.
//
// It shares no memory with next but the identities of its workloads and sketches of connections. It panics
// where next is of another boot or scope or begins before w ends: the sum would
// overlap with other windows.
func (w *Window) Merge(next *Window) {
	if w.Boot != next.Boot || w.Scope != next.Scope || next.Start < w.End {
		panic("usage: merged windows are not of one boot and scope and in order")
	}
	w.setOffset(next.Offset)
	w.End, w.CPUs = next.End, next.CPUs
	w.Gaps = append(slices.Clip(w.Gaps), next.Gaps...)
	w.Total.Add(&next.Total)
	w.Balance.Add(&next.Balance)
	w.Handovers = MergeHandovers(w.Handovers, next.Handovers, w.End-w.Start)
	w.Volumes = MergeVolumes(w.Volumes, next.Volumes)
	w.Rows = mergeRows(w.Rows, next.Rows)
}

// mergeRows adds the rows of the next window to rows, whose memory it reuses.
func mergeRows(rows, next []Row) []Row {
	type key struct {
		id   workload.ShortID
		life workload.Life
	}
	at := make(map[key]int, len(rows)) // where the row of the life stands that goes on
	for i := range rows {
		if !rows[i].Ended {
			at[key{rows[i].ShortID, rows[i].Life()}] = i
		}
	}
	// place is where a row stands in next; -1 is not at all.
	place := slices.Repeat([]int{-1}, len(rows))
	for j := range next {
		k := key{next[j].ShortID, next[j].Life()}
		i, ok := at[k]
		if !ok || next[j].IsWholeLife() && next[j].Has != 0 && rows[i].isUsed() {
			i = len(rows)
			rows, place = append(rows, next[j]), append(place, j)
		} else {
			rows[i].merge(&next[j])
			place[i] = j
		}
		if !next[j].Ended {
			at[k] = i
		} else if at[k] == i {
			delete(at, k)
		}
	}
	if slices.IsSorted(place) {
		return sumWholeLives(rows)
	}
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(place[a], place[b]) })
	sorted := make([]Row, len(rows))
	for i, from := range order {
		sorted[i] = rows[from]
	}
	return sumWholeLives(sorted)
}

// sumWholeLives adds whole lives of a workload into the row of the first one, where rows do not say which life
// they are of.
func sumWholeLives(rows []Row) []Row {
	var first map[workload.ShortID]int
	kept := rows[:0]
	for i := range rows {
		r := &rows[i]
		if !r.IsWholeLife() || r.Has == 0 || r.Life() != (workload.Life{}) {
			kept = append(kept, *r)
			continue
		}
		if k, ok := first[r.ShortID]; ok {
			kept[k].addLife(r)
			continue
		}
		if first == nil {
			first = map[workload.ShortID]int{}
		}
		first[r.ShortID] = len(kept)
		kept = append(kept, *r)
	}
	return kept
}

// addLife adds another whole life to that of r.
func (r *Row) addLife(o *Row) {
	r.Usage.Add(&o.Usage)
	r.Connections = connection.Merged(r.Connections, o.Connections)
	r.Has |= o.Has
	r.Has.Each(func(k Resource) { r.Total[k] = r.Usage.Amount[k] })
}

// isUsed reports whether the workload has used something in its life, as far as the row says.
func (r *Row) isUsed() bool {
	used := r.Total != [Limit]int64{}
	(r.Usage.Present &^ peaks).Each(func(k Resource) { used = used || r.Usage.Amount[k] != 0 })
	return used
}

// merge adds what the same life of a workload used in the next window.
func (r *Row) merge(next *Row) {
	// A row without a total has that of the row before plus its Usage.
	(r.Has &^ next.Has).Each(func(k Resource) {
		if v, ok := next.Usage.Get(k); ok {
			r.Total[k] = (r.Total[k] + v) & math.MaxInt64
		}
	})
	next.Has.Each(func(k Resource) { r.Total[k] = next.Total[k] })
	r.Has |= next.Has
	r.Usage.Add(&next.Usage)
	r.Connections = connection.Merged(r.Connections, next.Connections)
	r.Workload, r.Ended = next.Workload, next.Ended
}

// setOffset gives w another offset. The gaps of w move along, so that they stay beside it. The
// start of a gap by a reboot is in the previous boot and keeps its time.
func (w *Window) setOffset(offset int64) {
	by := time.Duration(offset - w.Offset)
	w.Offset = offset
	if by == 0 {
		return
	}
	w.Gaps = slices.Clone(w.Gaps)
	for i := range w.Gaps {
		g := &w.Gaps[i]
		g.To = g.To.Add(by)
		if g.Reason != Rebooted {
			g.From = g.From.Add(by)
		} else if g.From.After(g.To) {
			g.From = g.To
		}
	}
}

// Clone returns a copy of w that shares no memory with it but the identities of its
// workloads and sketches of connections.
func (w *Window) Clone() *Window {
	c := *w
	c.Gaps, c.Rows, c.Handovers, c.Volumes = slices.Clone(w.Gaps), slices.Clone(w.Rows), cloneHandovers(w.Handovers), slices.Clone(w.Volumes)
	return &c
}
