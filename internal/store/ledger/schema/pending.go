package schema

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"mete.dev/mete/internal/model/fault"
)

// A RowKey is where a row stands in its table.
type RowKey struct{ Minute, ID int64 }

// A Pending is rows of a shape that wait to be written, one for each key.
type Pending struct {
	Layout *Layout
	Rows   map[RowKey][]int64 // in the order of shape.cols
}

func NewPending(s *Layout) Pending { return Pending{s, map[RowKey][]int64{}} }

// Add adds values to the row under a key, which may take them over.
func (h Pending) Add(k RowKey, values []int64) error {
	have, ok := h.Rows[k]
	if !ok {
		h.Rows[k] = values
		return nil
	}
	for i, c := range h.Layout.Columns {
		switch a, b := have[i], values[i]; c.Merge {
		case MergeSum:
			if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
				return fmt.Errorf("%s of minute %d: %w", c.Name, k.Minute, ErrRange)
			}
			have[i] = a + b
		case MergeMax:
			have[i] = max(a, b)
		case MergeOr:
			have[i] = a | b
		case MergeLatest:
			have[i] = b
		}
	}
	return nil
}

// SortedKeys are the keys in the order of the table.
func (h Pending) SortedKeys() []RowKey {
	return slices.SortedFunc(maps.Keys(h.Rows), func(a, b RowKey) int {
		return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.ID, b.ID))
	})
}

// AddSaturating adds a row to another; a sum that does not fit stays at the largest
// value, as where days are folded.
func (h Pending) AddSaturating(have, values []int64) {
	for i, c := range h.Layout.Columns {
		switch a, b := have[i], values[i]; c.Merge {
		case MergeSum:
			switch {
			case b > 0 && a > math.MaxInt64-b:
				have[i] = math.MaxInt64
			case b < 0 && a < -math.MaxInt64-b:
				have[i] = -math.MaxInt64
			default:
				have[i] = a + b
			}
		case MergeMax:
			have[i] = max(a, b)
		case MergeOr:
			have[i] = a | b
		case MergeLatest:
		}
	}
}

// ErrRange says that the database refused a value: an amount too large, a text
// that it cannot hold. It is the fault of one entry, not of the database.
var ErrRange = fmt.Errorf("out of range: %w", fault.ErrInvalid)
