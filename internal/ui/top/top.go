// Package top arranges a [live.Machine] for people: as a tree or a flat list, sorted,
// filtered, folded, and as lines of text of a given width.
//
// A [Line] is a list of spans with a [Role], and a [Painter] chooses the look of each role
// on a terminal. No line is wider than requested, and no name can insert a control
// character.
//
// Amounts are exclusive: a row shows what its workload used and none of its children did,
// except that a folded row shows its whole subtree. So the rows on the screen, with the
// line of those not shown, always sum to the machine.
package top

import (
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/text"
)

// A Sort is the order of rows.
type Sort uint8

const (
	ByCPU Sort = iota
	ByMemory
	ByDisk     // read and written together
	ByNetwork  // received and sent together
	ByPIDs     // tasks alive
	ByPressure // the worst of the three
	ByPower
	ByName
)

var sortNames = [...]string{"cpu", "memory", "disk", "network", "pids", "pressure", "power", "name"}

// String returns the name of the order as in the --sort flag.
func (s Sort) String() string {
	if int(s) < len(sortNames) {
		return sortNames[s]
	}
	return fmt.Sprintf("sort(%d)", s)
}

// Sorts returns the names that [ParseSort] accepts.
func Sorts() []string { return slices.Clone(sortNames[:]) }

// ParseSort returns the order with that name or prefix; the error wraps fault.ErrInvalid
// and has the names as its hint.
func ParseSort(name string) (Sort, error) {
	for i, n := range sortNames {
		if name != "" && strings.HasPrefix(n, strings.ToLower(name)) {
			return Sort(i), nil
		}
	}
	return 0, fault.WithHint(fmt.Errorf("sort by %q: %w", name, fault.ErrInvalid),
		"sort by one of "+strings.Join(sortNames[:], ", "))
}

// Options select how to arrange and format a machine. The zero value is a tree, the busiest
// first.
type Options struct {
	Flat     bool   // a list instead of a tree
	Sort     Sort   // amounts from high to low, names from A to Z
	Reverse  bool   // reverse order
	Filter   string // keep rows whose name, path or kind contains it, ignoring case
	HideIdle bool   // hide workloads that are not busy in the tick, see [IsBusy]
	Sums     bool   // in a tree, show a parent with all its descendants
	Percent  bool   // write CPU in percent of one CPU instead of cores
	ASCII    bool   // only ASCII characters
	// Recent holds the workloads that HideIdle leaves, since they were busy a short while ago.
	Recent map[workload.ID]bool
	// Hidden are the columns that are not shown.
	Hidden Columns
	// Folded holds the workloads whose subtree is shown as one row. A filter matches inside
	// them anyway.
	Folded map[workload.ID]bool
}

// A Row is one line of a table.
type Row struct {
	Row     *live.Row    // of the machine, read-only
	Label   string       // [Label], without the part that the parent's label in the tree has
	Branch  string       // the drawing of the tree before the name
	Figures live.Figures // as shown: own, or of the subtree
	Below   int          // number of descendants
	Folded  bool         // Figures include the descendants, which have no rows
	Match   bool         // the filter matches the row itself, not only a descendant
}

// A Table is a machine, arranged.
type Table struct {
	Rows []Row
	// Rest is the sum of the RestCount workloads that the filter or HideIdle left out.
	Rest      live.Figures
	RestCount int
	// Total is the sum of all workloads, shown or not.
	Total live.Figures
	// Count is the number of workloads, idle and system included.
	Count int
	// Differs names the resources whose total differs from the machine's capacity, which is
	// always a defect; empty if the accounts balance.
	Differs []string

	longest int         // cells of the longest name
	fleet   *live.Fleet // of the machine
}

// Label returns the display name of a workload: its name, else the end of its path, else
// its ID; safe to print.
func Label(r *live.Row) string {
	for _, s := range []string{r.Name, r.Path[strings.LastIndexByte(r.Path, '/')+1:], string(r.ID)} {
		if s = text.Clean(s); s != "" {
			return s
		}
	}
	return "?"
}

// residual reports whether r is system or idle.
func residual(r *live.Row) bool { return r.Kind == workload.Idle || r.Kind == workload.System }

// kindOf returns the text of the kind column.
func kindOf(r *live.Row) string {
	if r.Group != "" {
		return r.Group
	}
	return r.Kind.String()
}
