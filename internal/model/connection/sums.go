package connection

import (
	"iter"
	"math"
	"slices"
)

// Sums are sketches merged by group, in bounded memory. A group is a number from 0 on. As in a
// [Sketch], an edge of a group has had at least its Bytes and at most Error more, and one that is not in All at most what Missed
// returns. Amounts and errors above 2 EiB count as 2 EiB.
type Sums struct {
	most   int
	groups []int64 // what was missed, by group
	at     map[groupEdge]int32
	edges  []sum
}

// A groupEdge is an edge of a group.
type groupEdge struct {
	group int32
	Edge
}

// A sum is an edge with all that was added for it.
type sum struct {
	groupEdge
	Traffic
	// known is how much of what its group missed is known not to be of the edge. The rest is its error, so that what a sketch
	// missed is added to all other edges at once.
	known int64
}

// room is how many times as many edges there are as are kept, while sketches are added.
const room = 4

// NewSums returns sums that keep the given number of edges, of all groups together. While sketches are added there are four
// times as many, of some 200 bytes each.
func NewSums(most int) *Sums { return &Sums{most: most, at: map[groupEdge]int32{}} }

// largest is where amounts end, so that those of an edge and its error add up within an int64.
const largest = math.MaxInt64 / 4

// plus returns the sum of amounts that are not negative.
func plus(a, b int64) int64 { return min(min(a, largest)+min(b, largest), largest) }

// Add merges a valid sketch into those of a group.
func (s *Sums) Add(group int, o *Sketch) {
	for len(s.groups) <= group {
		s.groups = append(s.groups, 0)
	}
	s.groups[group] = plus(s.groups[group], o.Missed)
	for i := range o.Entries {
		e := &o.Entries[i]
		k := groupEdge{int32(group), e.Edge}
		at, ok := s.at[k]
		if !ok {
			at = int32(len(s.edges))
			s.at[k], s.edges = at, append(s.edges, sum{groupEdge: k})
		}
		n := &s.edges[at]
		n.Traffic = Traffic{plus(n.RxBytes, e.RxBytes), plus(n.TxBytes, e.TxBytes), plus(n.RxPackets, e.RxPackets), plus(n.TxPackets, e.TxPackets)}
		n.known = plus(n.known, o.Missed-e.Error)
	}
	if len(s.edges) > room*s.most {
		s.cut()
	}
}

// error returns the most bytes by which an edge may have had more.
func (s *Sums) error(n *sum) int64 {
	if s.groups[n.group] == largest {
		return largest
	}
	return s.groups[n.group] - n.known
}

// cut keeps the edges that may be the largest. Of several that may be equal it keeps all or none, so that the result depends on
// no order of edges.
func (s *Sums) cut() {
	if len(s.edges) <= s.most {
		return
	}
	bounds := make([]int64, len(s.edges))
	for i := range s.edges {
		bounds[i] = s.edges[i].Bytes() + s.error(&s.edges[i])
	}
	sorted := slices.Clone(bounds)
	slices.Sort(sorted)
	limit := sorted[len(sorted)-s.most-1]
	missed := slices.Clone(s.groups)
	for i, b := range bounds {
		if g := s.edges[i].group; b <= limit {
			missed[g] = max(missed[g], min(b, largest))
		}
	}
	kept := s.edges[:0]
	clear(s.at)
	for i, b := range bounds {
		if b <= limit {
			continue
		}
		n := s.edges[i]
		n.known = plus(n.known, missed[n.group]-s.groups[n.group]) // its error stays
		s.at[n.groupEdge], kept = int32(len(kept)), append(kept, n)
	}
	s.edges, s.groups = kept, missed
}

// All returns the largest edges, with the numbers of their groups, in no order.
func (s *Sums) All() iter.Seq2[int, Entry] {
	s.cut()
	return func(yield func(int, Entry) bool) {
		for i := range s.edges {
			n := &s.edges[i]
			if !yield(int(n.group), Entry{Edge: n.Edge, Traffic: n.Traffic, Error: s.error(n)}) {
				return
			}
		}
	}
}

// Missed returns the most bytes that an edge of any group may have had that is not in All.
func (s *Sums) Missed() int64 {
	s.cut()
	return slices.Max(append(slices.Clone(s.groups), 0))
}
