package usage

import (
	"slices"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// MaxShares is how many shares a handover has at most.
const MaxShares = 64

// AddShare appends to the shares of a window. Where they would be too many only some
// stay, those that stay where windows are merged.
func AddShare(shares []power.Share, s *power.Share) []power.Share {
	if len(shares) >= MaxShares {
		if shares = thin(shares, s.At-shares[0].At); len(shares) >= MaxShares { // they are more than one a second
			shares = shares[:copy(shares, shares[1:])]
		}
	}
	return append(shares, *s)
}

// MergeHandovers adds the handovers of a window to those of one before it, where
// both together span so many ns. It shares no memory with next.
//
// Of each virtual machine it keeps what was booked up to before the first window,
// and the sum of what was booked. Where there are many shares only some stay, the
// last one among them: see thin.
func MergeHandovers(list, next []Handover, span int64) []Handover {
	if len(list)+len(next) == 0 {
		return list
	}
	type key struct {
		guest    string
		workload workload.ID
	}
	joined := make([]Handover, 0, max(len(list), len(next)))
	at := make(map[key]int, len(list))
	for _, hs := range [][]Handover{list, next} {
		for i := range hs {
			h := &hs[i]
			k := key{h.Guest, h.Workload}
			j, ok := at[k]
			if !ok {
				at[k] = len(joined)
				joined = append(joined, *h)
				joined[len(joined)-1].Shares = slices.Clone(h.Shares)
				continue
			}
			to := &joined[j]
			if h.Name != "" {
				to.Name = h.Name
			}
			to.Shares = append(to.Shares, h.Shares...)
			to.Booked = add(to.Booked, h.Booked)
		}
	}
	for i := range joined {
		joined[i].Shares = thin(joined[i].Shares, span)
	}
	return joined
}

// thin keeps of the shares of so many ns no more than MaxShares. Which ones is
// decided by their numbers, so that a host and its guest keep the same, and it is
// nothing in which order windows are merged: of each stretch of numbers the last
// one. A stretch is the least power of two in seconds of which some sixty are in
// the span.
func thin(shares []power.Share, span int64) []power.Share {
	const most = MaxShares - 4 // a span begins and ends within a stretch
	step := int64(1000)        // numbers are in ms
	for step*1e6*most < span {
		step *= 2
	}
	if step == 1000 && len(shares) <= MaxShares {
		return shares
	}
	kept := shares[:0]
	for i := range shares {
		s := &shares[i]
		if i+1 < len(shares) && shares[i+1].Epoch == s.Epoch && shares[i+1].N/step == s.N/step {
			continue
		}
		kept = append(kept, *s)
	}
	return kept[max(0, len(kept)-MaxShares):]
}

// cloneHandovers is a copy that shares no memory with the list.
func cloneHandovers(list []Handover) []Handover {
	list = slices.Clone(list)
	for i := range list {
		list[i].Shares = slices.Clone(list[i].Shares)
	}
	return list
}
