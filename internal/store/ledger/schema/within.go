package schema

import "fmt"

// The key of a row says whose it is, and within which other node's rows the same use is counted:
// the id of the workload or node in the lower bits, and above them the id of that node, 0 if there
// is none. So rows within a node have the same tables, are folded in the same way, and follow all
// others in the order of keys.
const (
	withinShift = 40
	idMask      = 1<<withinShift - 1

	// FirstWithin is the first key of rows within another node.
	FirstWithin = 1 << withinShift
	// EndWithin is the first id of a node that no rows can be within.
	EndWithin = 1 << (63 - withinShift)
)

// Key returns the key of the rows of a workload or a node within another node; 0 is none.
func Key(id, within int64) int64 { return within<<withinShift | id }

// SplitKey returns the id of a key's workload or node, and the node that its rows are within.
func SplitKey(key int64) (id, within int64) { return key & idMask, key >> withinShift }

// IDOf returns SQL for the id of a column of keys.
func IDOf(column string) string { return fmt.Sprintf("(%s & %d)", column, int64(idMask)) }

// WithinOf returns SQL for the node that the rows of a column of keys are within, 0 if none.
func WithinOf(column string) string { return fmt.Sprintf("(%s >> %d)", column, withinShift) }

// HasContent returns the condition that a row is not empty. Rows that were moved within another
// node, or out of it, leave an empty one behind, which a server above has to learn of; others are not
// written, see [Pending.Add].
func HasContent(row string) string {
	return fmt.Sprintf("(%[1]s.present <> 0 OR %[1]s.covered_ms <> 0)", row)
}
