package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// A rowKey is where a row stands in its table.
type rowKey struct{ minute, id int64 }

// A heap is rows of a shape that wait to be written, one for each key.
type heap struct {
	shape *shape
	rows  map[rowKey][]int64 // in the order of shape.cols
}

func newHeap(s *shape) heap { return heap{s, map[rowKey][]int64{}} }

// add adds values to the row under a key, which may take them over.
func (h heap) add(k rowKey, values []int64) error {
	have, ok := h.rows[k]
	if !ok {
		h.rows[k] = values
		return nil
	}
	for i, c := range h.shape.cols {
		switch a, b := have[i], values[i]; c.how {
		case add:
			if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
				return fmt.Errorf("%s of minute %d: %w", c.name, k.minute, errRange)
			}
			have[i] = a + b
		case highest:
			have[i] = max(a, b)
		case bits:
			have[i] = a | b
		case latest:
			have[i] = b
		}
	}
	return nil
}

// sorted are the keys in the order of the table.
func (h heap) sorted() []rowKey {
	return slices.SortedFunc(maps.Keys(h.rows), func(a, b rowKey) int {
		return cmp.Or(cmp.Compare(a.minute, b.minute), cmp.Compare(a.id, b.id))
	})
}

// usageValues is u as a row of usageShape.
func usageValues(u *usage.Usage, rev int64) []int64 {
	values := make([]int64, len(usageShape.cols))
	putUsage(values, u, rev, colRest)
	return values
}

// nodeValues is n as a row of nodeShape.
func nodeValues(n *batch.NodeMinute, rev int64) []int64 {
	values := make([]int64, len(nodeShape.cols))
	values[colRest], values[colRest+1], values[colRest+2] = int64(n.CPUs), n.Violations, n.Lost
	copy(values[colRest+3:], n.Whole[:])
	copy(values[colRest+3+len(n.Whole):], n.Skew[:])
	putUsage(values, &n.Total, rev, colRest+3+2*len(n.Whole))
	values[colCovered] = millis(n.Covered)
	return values
}

func putUsage(values []int64, u *usage.Usage, rev int64, first int) {
	present := u.Present & usage.All
	values[colRev] = rev
	values[colPresent] = int64(present)
	values[colRough] = thermometer(present, u.Quality)
	values[colCovered] = millis(u.Covered)
	for r := usage.Resource(1); r < usage.Limit; r++ {
		if present.Has(r) {
			values[first+int(r)-1] = u.Amount[r]
		}
	}
}

// millis rounds each part by itself, so that the order in which parts are added
// is nothing.
func millis(d time.Duration) int64 { return int64(d.Round(time.Millisecond) / time.Millisecond) }

// lastMinute is the end of what can be stored, in the year 6053.
const lastMinute = 1 << 31

// valid says what about the entry cannot be stored. What only becomes too large
// together with what is there is seen when it is written.
func valid(e *batch.Entry) error {
	if e.Number == 0 || e.Number >= math.MaxInt64 {
		return fmt.Errorf("number %d: %w", e.Number, fault.ErrInvalid)
	}
	for i := range e.Minutes {
		m := &e.Minutes[i]
		if m.Minute < 0 || m.Minute >= lastMinute || m.Usage.Covered < 0 || !fits(&m.Usage) {
			return fmt.Errorf("workload %016x in minute %d: %w", uint64(m.Workload), m.Minute, errRange)
		}
	}
	for i := range e.Nodes {
		n := &e.Nodes[i]
		bad := n.Minute < 0 || n.Minute >= lastMinute || n.Covered < 0 || !fits(&n.Total) ||
			!small(int64(n.CPUs)) || !small(n.Violations) || !small(n.Lost)
		for j := range n.Whole {
			bad = bad || !small(n.Whole[j]) || !small(max(n.Skew[j], -n.Skew[j]))
		}
		if bad {
			return fmt.Errorf("minute %d of the node: %w", n.Minute, errRange)
		}
	}
	return nil
}

func fits(u *usage.Usage) bool {
	ok := true
	(u.Present & usage.All).Each(func(r usage.Resource) { ok = ok && small(u.Amount[r]) })
	return ok
}

// small reports whether v is an amount that a minute can have.
func small(v int64) bool { return v>>minuteBits == 0 }
