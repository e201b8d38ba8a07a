package schema

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"mete.dev/mete/internal/model/fault"
)

// A RowKey identifies a row of a table.
type RowKey struct{ Minute, ID int64 }

// Compare orders keys as the tables are ordered.
func (k RowKey) Compare(o RowKey) int {
	return cmp.Or(cmp.Compare(k.Minute, o.Minute), cmp.Compare(k.ID, o.ID))
}

// Pending holds rows of a layout to be written, one for each key.
type Pending struct {
	Layout *Layout
	Rows   map[RowKey][]int64 // in the order of Layout.Columns
}

func NewPending(s *Layout) Pending { return Pending{s, map[RowKey][]int64{}} }

// Add adds values to the row of a key. It may keep the slice. It leaves out usage without content, which
// no answer includes; see [HasContent].
func (p Pending) Add(k RowKey, values []int64) error {
	if p.Layout == UsageLayout && values[ColPresent] == 0 && values[ColCovered] == 0 {
		return nil
	}
	have, ok := p.Rows[k]
	if !ok {
		p.Rows[k] = values
		return nil
	}
	for i, c := range p.Layout.Columns {
		switch a, b := have[i], values[i]; c.Merge {
		case MergeSum:
			sum, fits := AddInts(a, b)
			if !fits {
				return fmt.Errorf("%s of minute %d: %w", c.Name, k.Minute, ErrRange)
			}
			have[i] = sum
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

// AddInts adds two numbers; fits is false if the sum overflows.
func AddInts(a, b int64) (sum int64, fits bool) { return a + b, (a+b >= a) == (b >= 0) }

// SortedKeys returns the keys in table order.
func (p Pending) SortedKeys() []RowKey {
	return slices.SortedFunc(maps.Keys(p.Rows), RowKey.Compare)
}

// AddSaturating adds a row to another; sums saturate, as when days are folded.
func (p Pending) AddSaturating(have, values []int64) {
	for i, c := range p.Layout.Columns {
		switch a, b := have[i], values[i]; c.Merge {
		case MergeSum:
			sum, fits := AddInts(a, b)
			switch {
			case !fits && sum < 0:
				sum = math.MaxInt64
			case !fits:
				sum = -math.MaxInt64
			}
			have[i] = max(sum, -math.MaxInt64)
		case MergeMax:
			have[i] = max(a, b)
		case MergeOr:
			have[i] = a | b
		case MergeLatest:
		}
	}
}

// ErrRange means that the database refused a value: an amount too large, or a text it cannot store.
// The entry is at fault, not the database.
var ErrRange = fmt.Errorf("out of range: %w", fault.ErrInvalid)
