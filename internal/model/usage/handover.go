package usage

import (
	"slices"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// MaxShares is the maximum number of shares of a handover.
const MaxShares = 64

// AddShare appends s to the shares of a window. It keeps at most MaxShares, and thins them as a
// merge of windows does.
func AddShare(shares []power.Share, s *power.Share) []power.Share {
	if len(shares) >= MaxShares {
		if shares = thin(shares, s.At-shares[0].At); len(shares) >= MaxShares { // more than one share a second
			shares = shares[:copy(shares, shares[1:])]
		}
	}
	return append(shares, *s)
}

// MergeHandovers adds the handovers of a window to those of an earlier one, where both together
// span span ns. The result shares no memory with next.
//
// For each virtual machine it keeps the share up to which energy was booked before the first
// window, and the sum of the booked energy. If there are many shares, it keeps some, among them the
// last one: see thin.
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

// thin reduces the shares of span ns to at most MaxShares: it keeps the last share of each stretch
// of numbers. The choice depends on the numbers only, so that a host and its guest keep the same
// shares, in whatever order windows are merged. A stretch is the smallest power of two, in seconds,
// of which at most sixty fit into the span.
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
