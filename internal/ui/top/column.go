package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
)

// Columns is a set of columns, by the orders that sort by them.
type Columns uint16

// Has reports whether the column of an order is in the set.
func (c Columns) Has(s Sort) bool { return c>>s&1 == 1 }

// Toggle returns the set with the column of an order if c lacks it, else without.
func (c Columns) Toggle(s Sort) Columns { return c ^ 1<<s }

// Optional are the orders whose columns can be hidden.
var Optional = []Sort{ByCPU, ByMemory, ByPower, ByDisk, ByNetwork, ByPIDs, ByPressure}

// ParseColumns returns the columns to hide where only those with the names, or prefixes of them, are
// wanted. The error wraps fault.ErrInvalid.
func ParseColumns(names []string) (hidden Columns, err error) {
	for _, s := range Optional {
		hidden = hidden.Toggle(s)
	}
	for _, name := range names {
		s, err := ParseSort(name)
		if err != nil || !slices.Contains(Optional, s) {
			var all []string
			for _, o := range Optional {
				all = append(all, o.String())
			}
			return 0, fault.WithHint(fmt.Errorf("column %q: %w", name, fault.ErrInvalid), "choose some of "+strings.Join(all, ", "))
		}
		if hidden.Has(s) {
			hidden = hidden.Toggle(s)
		}
	}
	return hidden, nil
}

// A column is one figure of every row, or several combined.
type column struct {
	title string
	width int
	sort  Sort
	cell  func(a *live.Figures, o Options) (text string, f live.Figure)
}

// simpleColumn returns the column of a single field.
func simpleColumn(title string, width int, s Sort, f live.Field, write func(float64) string) *column {
	return &column{title, width, s, func(a *live.Figures, _ Options) (string, live.Figure) { return write(a[f].Value), a[f] }}
}

// sumColumn returns the column of the sum of two fields.
func sumColumn(title string, width int, s Sort, of func(*live.Figures) live.Figure, write func(float64) string) *column {
	return &column{title, width, s, func(a *live.Figures, _ Options) (string, live.Figure) {
		sum := of(a)
		return write(sum.Value), sum
	}}
}

var (
	colCPU = &column{"CPU", 6, ByCPU, func(a *live.Figures, o Options) (string, live.Figure) {
		return cores(a[live.CPU].Value, o.Percent), a[live.CPU]
	}}
	colMemory  = simpleColumn("MEMORY", 7, ByMemory, live.Memory, size)
	colRead    = simpleColumn("READ/s", 7, ByDisk, live.DiskRead, size)
	colWritten = simpleColumn("WRITE/s", 8, ByDisk, live.DiskWritten, size)
	colDisk    = sumColumn("DISK/s", 7, ByDisk, (*live.Figures).Disk, size)
	colRx      = simpleColumn("RX/s", 7, ByNetwork, live.NetworkRx, size)
	colTx      = simpleColumn("TX/s", 7, ByNetwork, live.NetworkTx, size)
	colNetwork = sumColumn("NET/s", 7, ByNetwork, (*live.Figures).Network, size)
	colPIDs    = simpleColumn("PIDS", 6, ByPIDs, live.PIDs, func(v float64) string { return digits(v, 0) })
	colPower   = simpleColumn("POWER", 7, ByPower, live.Power, watts)
	colPSICPU  = simpleColumn("P.CPU", 6, ByPressure, live.PressureCPU, percent)
	colPSIMem  = simpleColumn("P.MEM", 6, ByPressure, live.PressureMemory, percent)
	colPSIIO   = simpleColumn("P.IO", 6, ByPressure, live.PressureIO, percent)
	colPSI     = &column{"PRESS", 6, ByPressure, func(a *live.Figures, _ Options) (string, live.Figure) {
		f, letter := worst(a)
		s := percent(f.Value)
		if f.Value > 0 {
			s += letter
		}
		return s, f
	}}
)

// A layout is the columns after the name, for screens on which the name has at least min
// cells.
type layout struct {
	min     int
	kind    bool
	columns []*column
}

// layouts are ordered from wide to narrow: figures are first combined, then left out, the
// least important first.
var layouts = []layout{
	{24, true, []*column{colCPU, colMemory, colPower, colRead, colWritten, colRx, colTx, colPIDs, colPSICPU, colPSIMem, colPSIIO}},
	{24, false, []*column{colCPU, colMemory, colPower, colRead, colWritten, colRx, colTx, colPIDs, colPSICPU, colPSIMem, colPSIIO}},
	{24, false, []*column{colCPU, colMemory, colPower, colRead, colWritten, colRx, colTx, colPIDs, colPSI}},
	{24, false, []*column{colCPU, colMemory, colPower, colDisk, colNetwork, colPIDs, colPSI}},
	{24, false, []*column{colCPU, colMemory, colPower, colDisk, colNetwork, colPIDs}},
	{18, false, []*column{colCPU, colMemory, colPower, colDisk, colNetwork}},
	{18, false, []*column{colCPU, colMemory, colDisk, colNetwork}},
	{14, false, []*column{colCPU, colMemory, colPower}},
	{14, false, []*column{colCPU, colMemory}},
	{10, false, []*column{colCPU}},
	{0, false, nil},
}

// kindWidth is the width of the longest kind, slurm-step.
const kindWidth = 10

func (l *layout) width() int {
	w := 0
	if l.kind {
		w += kindWidth + 1
	}
	for _, c := range l.columns {
		w += c.width + 1
	}
	return w
}

// without returns the layout without hidden columns.
func (l *layout) without(hidden Columns) *layout {
	if hidden == 0 {
		return l
	}
	return &layout{l.min, l.kind, slices.DeleteFunc(slices.Clone(l.columns), func(c *column) bool { return hidden.Has(c.sort) })}
}

// longest is the maximum width of names on a screen of unlimited width, shortest their
// minimum width if there is room.
const (
	maxNameWidth = 160
	shortest     = 40
)

// layoutFor returns the layout and the width of the name column, which is no wider than the
// names need. Width 0 means unlimited.
func (t *Table) layoutFor(width int, o Options) (*layout, int) {
	if width <= 0 {
		return layouts[0].without(o.Hidden), t.names(24, maxNameWidth)
	}
	for i := range layouts {
		if l := layouts[i].without(o.Hidden); width-l.width() >= l.min {
			name := width - l.width()
			if name > shortest {
				name = t.names(shortest, name)
			}
			return l, name
		}
	}
	return &layouts[len(layouts)-1], width
}

// names returns the width of the longest name, within bounds.
func (t *Table) names(least, most int) int { return max(least, min(most, t.longest)) }

// cells returns the approximate width of the name with its branch and marks.
func (r *Row) cells() int {
	w := utf8.RuneCountInString(r.Branch) + Width(r.Label)
	if r.Row.Ended || r.Folded {
		w += len("▸ +12345")
	}
	if r.Row.State != "" {
		w += 1 + Width(r.Row.State)
	}
	return w
}

// Titles returns the title line.
func (t *Table) Titles(width int, o Options) Line {
	l, name := t.layoutFor(width, o)
	g := glyphsOf(o)
	arrow := g.down
	if o.Reverse != (o.Sort == ByName) {
		arrow = g.up
	}
	title := func(s string, by Sort) Span {
		if by == o.Sort {
			return Span{arrow + s, Sorted}
		}
		return Span{s, Title}
	}
	what := "WORKLOAD"
	if o.Sums && !o.Flat {
		what = "WORKLOAD WITH ALL BELOW"
	}
	line := cell(Line{title(what, ByName)}, name, o)
	if l.kind {
		line = append(line, Span{" ", Plain}, Span{pad("KIND", kindWidth), Title})
	}
	for _, c := range l.columns {
		text := c.title
		if c == colCPU && o.Percent {
			text = "CPU%"
		}
		s := title(text, c.sort)
		line = append(line, Span{" " + padLeft(s.Text, c.width), s.Role})
	}
	return line.Fit(widthOr(width, line), o.ASCII)
}

// SortAt returns the order of the column that has cell x of the title line, and whether there is
// one.
func (t *Table) SortAt(x, width int, o Options) (Sort, bool) {
	l, name := t.layoutFor(width, o)
	if x < name {
		return ByName, true
	}
	x -= name
	if l.kind {
		if x -= kindWidth + 1; x < 0 {
			return 0, false // no order
		}
	}
	for _, c := range l.columns {
		if x -= c.width + 1; x < 0 {
			return c.sort, true
		}
	}
	return 0, false
}

// Line returns the line of a row.
func (t *Table) Line(r *Row, width int, o Options) Line {
	l, name := t.layoutFor(width, o)
	line := cell(r.name(name, o), name, o)
	if l.kind {
		line = append(line, Span{" ", Plain}, Span{pad(kindOf(r.Row), kindWidth), Dim})
	}
	line = append(line, figures(l, &r.Figures, o)...)
	return line.Fit(widthOr(width, line), o.ASCII)
}

// Lines returns the lines of all rows.
func (t *Table) Lines(width int, o Options) []Line {
	out := make([]Line, 0, len(t.Rows))
	for i := range t.Rows {
		out = append(out, t.Line(&t.Rows[i], width, o))
	}
	return out
}

// Foot returns the lines below the rows: what is not shown, if anything, and the total of
// all workloads, which equals the machine.
func (t *Table) Foot(width int, o Options) []Line {
	l, name := t.layoutFor(width, o)
	sum := func(label Line, f *live.Figures) Line {
		line := cell(label, name, o)
		if l.kind {
			line = append(line, Span{strings.Repeat(" ", kindWidth+1), Plain})
		}
		return append(line, sums(l, f, o)...)
	}
	var out []Line
	if t.RestCount > 0 {
		out = append(out, sum(Line{{"not shown: " + plural(t.RestCount, "workload"), Dim}}, &t.Rest))
	}
	label := Line{{"TOTAL ", Title}, {"= the machine", Dim}}
	if t.fleet != nil {
		label[1].Text = "= the fleet"
		if t.fleet.Stale > 0 {
			label[1].Text = "= what is heard"
		}
	}
	if len(t.Differs) > 0 {
		label = Line{{"TOTAL ", Title}, {"is not the machine's " + strings.Join(t.Differs, ", "), Alarm}}
	}
	out = append(out, sum(label, &t.Total))
	for i := range out {
		out[i] = out[i].Fit(widthOr(width, out[i]), o.ASCII)
	}
	return out
}

// name formats the name of a row.
func (r *Row) name(width int, o Options) Line {
	g := glyphsOf(o)
	branch := r.Branch
	if w := Width(branch); w > width/2 {
		// Leave room for the name in a deep tree: draw only the end of the branch.
		runes := []rune(branch)
		branch = g.more + string(runes[len(runes)-max(0, width/2-1):])
	}
	line := Line{{branch, Dim}}
	if r.Folded {
		line = append(line, Span{g.folded + " ", Key})
	}
	label, role := safe(r.Label, o), Plain
	switch {
	case o.Filter != "" && r.Match:
		role = Found
	case o.Filter != "" || residual(r.Row) || r.Row.Ended:
		role = Dim
	}
	if r.Row.Group != "" && role == Plain {
		role = Strong
	}
	line = append(line, Span{label, role})
	if r.Row.State != "" {
		line = append(line, Span{" " + safe(r.Row.State, o), Notice})
	}
	switch {
	case r.Row.Ended:
		line = append(line, Span{" ended", Dim})
	case r.Folded:
		line = append(line, Span{" +" + strconv.Itoa(r.Below), Dim})
	}
	return line
}

// figures formats the cells of a row.
func figures(l *layout, a *live.Figures, o Options) (line Line) {
	for _, c := range l.columns {
		text, f := c.cell(a, o)
		role := Plain
		switch {
		case f.Quality == usage.Absent:
			text, role = glyphsOf(o).absent, Dim
		case f.Value == 0:
			text, role = Mark(f.Quality, o.ASCII)+text, Dim
		default:
			text = Mark(f.Quality, o.ASCII) + text
			if c.sort == ByPressure {
				role = pressureRole(f.Value)
			}
		}
		line = append(line, Span{" " + padLeft(text, c.width), role})
	}
	return line
}

// sums formats the cells of a sum, with pressure empty because it has no sum.
func sums(l *layout, a *live.Figures, o Options) Line {
	line := figures(l, a, o)
	for i, c := range l.columns {
		if c.sort == ByPressure {
			line[i] = Span{strings.Repeat(" ", c.width+1), Plain}
		} else if line[i].Role == Plain {
			line[i].Role = Strong
		}
	}
	return line
}

func pressureRole(share float64) Role {
	switch {
	case share >= 0.4:
		return Alarm
	case share >= 0.1:
		return Notice
	}
	return Plain
}

// cell pads or cuts l to exactly width cells.
func cell(l Line, width int, o Options) Line {
	l = l.Fit(width, o.ASCII)
	if w := l.Width(); w < width {
		l = append(l, Span{strings.Repeat(" ", width-w), Plain})
	}
	return l
}

func pad(s string, width int) string { return s + strings.Repeat(" ", max(0, width-Width(s))) }

// widthOr returns width, or that of the line if width is 0.
func widthOr(width int, l Line) int {
	if width <= 0 {
		return l.Width()
	}
	return width
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
