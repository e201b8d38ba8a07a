// Package top arranges a [live.Machine] for people: as a tree or a flat list,
// sorted, filtered, folded, and as lines of text of a given width.
//
// A [Line] is a list of spans with a [Role], and a [Painter] gives roles the looks
// that a terminal has. No line is wider than it
// was asked to be, and no name can bring a control character into one.
//
// Amounts are exclusive, as everywhere in mete: a row shows what its workload
// used and no child of it did, except that a folded row shows its whole
// subtree. So the rows on screen, with the line for those that are not shown,
// always add up to the machine.
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

// A Sort is what rows are ordered by.
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

// String returns the word that the --sort flag takes.
func (s Sort) String() string {
	if int(s) < len(sortNames) {
		return sortNames[s]
	}
	return fmt.Sprintf("sort(%d)", s)
}

// Sorts returns the words that [ParseSort] takes.
func Sorts() []string { return slices.Clone(sortNames[:]) }

// ParseSort returns the order of that name, or of a beginning of it; an error
// wraps fault.ErrInvalid and hints at the names.
func ParseSort(name string) (Sort, error) {
	for i, n := range sortNames {
		if name != "" && strings.HasPrefix(n, strings.ToLower(name)) {
			return Sort(i), nil
		}
	}
	return 0, fault.WithHint(fmt.Errorf("sort by %q: %w", name, fault.ErrInvalid),
		"sort by one of "+strings.Join(sortNames[:], ", "))
}

// Options say how to arrange and to write a machine. The zero value is a tree,
// the busiest first.
type Options struct {
	Flat     bool   // a list instead of a tree
	Sort     Sort   // amounts from high to low, names from A to Z
	Reverse  bool   // the other way round
	Filter   string // keep what has it in name, path or kind, whatever the case
	HideIdle bool   // leave out what used no CPU, disk or network in the tick
	Sums     bool   // in a tree, show a parent with all that is below it
	Percent  bool   // write CPU in percent of one CPU instead of cores
	ASCII    bool   // for terminals that know no other characters
	// Folded holds the workloads whose subtree is shown as one row. A filter
	// looks into them nevertheless.
	Folded map[workload.ID]bool
}

// A Row is one line of a table.
type Row struct {
	Row     *live.Row    // of the machine, not to be changed
	Label   string       // [Label], without what its parent's in the tree says already
	Branch  string       // what draws the tree before the name
	Figures live.Figures // as shown: own, or of the subtree
	Below   int          // workloads below it
	Folded  bool         // those below it are in Figures instead of in rows
	Match   bool         // it is what the filter looks for, not just on the way to it
}

// A Table is a machine, arranged.
type Table struct {
	Rows []Row
	// Rest is what the filter or HideIdle left out, of RestCount workloads.
	Rest      live.Figures
	RestCount int
	// Total is the sum of all workloads, shown or not.
	Total live.Figures
	// Count is the number of workloads, idle and system included.
	Count int
	// Differs names the resources whose total is not the machine's whole,
	// which is always a defect; empty where the books balance.
	Differs []string

	longest int         // cells of the longest name
	fleet   *live.Fleet // of the machine
}

// Label returns what a workload is called on a screen: its name, else the end
// of its path, else its ID; harmless to print.
func Label(r *live.Row) string {
	for _, s := range []string{r.Name, r.Path[strings.LastIndexByte(r.Path, '/')+1:], string(r.ID)} {
		if s = text.Clean(s); s != "" {
			return s
		}
	}
	return "?"
}

// residual reports whether r is one of the two that no job caused.
func residual(r *live.Row) bool { return r.Kind == workload.Idle || r.Kind == workload.System }

// kindOf is what stands in the column of kinds.
func kindOf(r *live.Row) string {
	if r.Group != "" {
		return r.Group
	}
	return r.Kind.String()
}
