package book

import (
	"fmt"
	"math"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// checkEntry returns an error if the entry cannot be stored. A sum that overflows is detected when
// it is written.
func checkEntry(e *batch.Entry) error {
	if e.Number == 0 || e.Number >= math.MaxInt64 {
		return fmt.Errorf("number %d: %w", e.Number, fault.ErrInvalid)
	}
	for i := range e.Minutes {
		m := &e.Minutes[i]
		if m.Minute < 0 || m.Minute >= schema.EndMinute || m.Usage.Covered < 0 || !schema.FitsMinute(&m.Usage) {
			return fmt.Errorf("workload %016x in minute %d: %w", uint64(m.Workload), m.Minute, schema.ErrRange)
		}
	}
	for i := range e.Nodes {
		n := &e.Nodes[i]
		bad := n.Minute < 0 || n.Minute >= schema.EndMinute || n.Covered < 0 || !schema.FitsMinute(&n.Total) ||
			!schema.FitsAmount(int64(n.CPUs)) || !schema.FitsAmount(n.Violations) || !schema.FitsAmount(n.Lost)
		for j := range n.Whole {
			bad = bad || !schema.FitsAmount(n.Whole[j]) || !schema.FitsAmount(max(n.Skew[j], -n.Skew[j]))
		}
		if bad {
			return fmt.Errorf("minute %d of the node: %w", n.Minute, schema.ErrRange)
		}
	}
	return nil
}
