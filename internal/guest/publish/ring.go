package publish

import (
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/model/power"
)

const (
	// ringMillis is how long shares are kept, in ms, and ringMax how many: virtual machines
	// acknowledge within seconds.
	ringMillis = 10 * 60 * 1000
	ringMax    = 4096
)

// A ring holds the recent shares of one virtual machine.
type ring struct {
	epoch string
	list  []shared // in order of numbers; entries before first are dropped
	first int
}

type shared struct{ n, energy int64 }

// put adds a share. A new epoch clears the ring.
func (r *ring) put(s *power.Share) {
	if s.Epoch != r.epoch {
		*r = ring{epoch: s.Epoch, list: r.list[:0]}
	}
	for r.first < len(r.list) && (r.list[r.first].n < s.N-ringMillis || len(r.list)-r.first >= ringMax) {
		r.first++
	}
	if r.first > 64 && r.first*2 > len(r.list) {
		r.list = r.list[:copy(r.list, r.list[r.first:])]
		r.first = 0
	}
	r.list = append(r.list, shared{s.N, s.Energy()})
}

// A comparison is the result of comparing an acknowledgment with its share.
type comparison uint8

const (
	unknown comparison = iota
	equal
	differing
)

// compare compares an acknowledgment with its share.
func (r *ring) compare(a energyshare.Ack) comparison {
	if a.Epoch != r.epoch {
		return unknown
	}
	low, high := r.first, len(r.list)
	for low < high { // at most twelve steps
		mid := int(uint(low+high) >> 1)
		if r.list[mid].n < a.N {
			low = mid + 1
		} else {
			high = mid
		}
	}
	switch {
	case low == len(r.list) || r.list[low].n != a.N:
		return unknown
	case r.list[low].energy == a.Energy:
		return equal
	}
	return differing
}
