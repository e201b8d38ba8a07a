package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// pastHeight is the height of a screen from which on the header has the machine's past.
const pastHeight = 30

// body returns the number of lines for rows.
func (m *model) body() int {
	return max(1, m.height-len(m.head())-1-m.feet()-1)
}

// head returns the lines above the table, at most a third of the screen.
func (m *model) head() []top.Line {
	if m.shown == nil {
		return nil
	}
	lines := top.Header(m.shown, m.width, m.opt)
	if p := m.past(); m.height >= pastHeight && p.machine.to > 0 {
		lines = append(lines, top.PastCPU(m.shown, p.past(&p.machine), m.width, m.opt))
	}
	notes := top.Notes(m.shown, m.width, m.opt)
	if len(notes) > 1 {
		more := top.Span{Text: fmt.Sprintf("  (%d more: ?)", len(notes)-1), Role: top.Dim}
		w := top.Line{more}.Width()
		notes[0] = append(notes[0].Fit(max(0, m.width-w), m.opt.ASCII), more).Fit(m.width, m.opt.ASCII)
		notes = notes[:1]
	}
	lines = append(lines, notes...)
	return lines[:min(len(lines), m.height/3)]
}

// feet returns the number of lines between the rows and the status line.
func (m *model) feet() int {
	switch {
	case m.table == nil || m.height < 8:
		return 0
	case m.table.RestCount > 0:
		return 2
	}
	return 1
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	v.MouseMode = tea.MouseModeCellMotion
	return v
}

// screen returns exactly height lines of at most width cells.
func (m *model) screen() string {
	if m.width <= 0 || m.height <= 0 {
		return ""
	}
	var lines []string
	put := func(ls ...top.Line) {
		for _, l := range ls {
			lines = append(lines, m.paint.Line(l.Fit(m.width, m.opt.ASCII)))
		}
	}
	switch {
	case m.mode == help:
		put(m.page(m.helpLines())...)
	case m.mode == details && m.inspected.row != nil:
		lines := top.Details(m.inspected.machine, m.inspected.row, m.inspected.past, m.width, m.opt)
		if m.inspected.ended {
			lines = slices.Insert(lines, 1, top.Line{{Text: "ended: these are its last figures", Role: top.Alarm}})
		}
		put(m.page(lines)...)
	case m.table == nil:
		put(top.Line{{Text: "mete top", Role: top.Strong}}, nil, top.Line{{Text: "Waiting for the first reading ..."}})
	default:
		put(m.head()...)
		put(m.table.Titles(m.width, m.opt))
		lines = append(lines, m.rows()...)
	}
	feet := 0
	if m.mode == list || m.mode == filter || m.mode == choosing {
		feet = m.feet()
	}
	// The status line stays at the bottom, even if the rest is short.
	lines = lines[:min(len(lines), max(0, m.height-1-feet))]
	for len(lines) < m.height-1-feet {
		lines = append(lines, "")
	}
	if feet > 0 {
		put(m.table.Foot(m.width, m.opt)...)
	}
	put(m.status())
	return strings.Join(lines, "\n")
}

// first returns the row at the top of the screen, so that the cursor is on it.
func (m *model) first() int {
	n := m.body()
	m.top = min(max(m.top, m.at-n+1, 0), m.at)
	m.top = max(0, min(m.top, len(m.table.Rows)-n))
	return m.top
}

// rows returns the part of the table around the cursor.
func (m *model) rows() []string {
	n := m.body()
	var out []string
	for i := m.first(); i < min(m.top+n, len(m.table.Rows)); i++ {
		l := m.table.Line(&m.table.Rows[i], m.width, m.opt)
		if i == m.at {
			out = append(out, m.paint.Selected(l, m.width))
		} else {
			out = append(out, m.paint.Line(l))
		}
	}
	if len(m.table.Rows) == 0 {
		out = append(out, m.paint.Line(top.Line{{Text: "Nothing matches. Esc clears the filter.", Role: top.Dim}}.Fit(m.width, m.opt.ASCII)))
	}
	return out
}

// page returns the visible part of a text.
func (m *model) page(lines []top.Line) []top.Line {
	m.scroll = max(0, min(m.scroll, len(lines)-(m.height-1)))
	return lines[m.scroll:]
}

// status returns the last line: the latest error, else the filter, else the keys.
func (m *model) status() top.Line {
	var l top.Line
	key := func(k, what string) {
		next := append(l[:len(l):len(l)], top.Span{Text: k, Role: top.Key}, top.Span{Text: " " + what + "  ", Role: top.Dim})
		if next.Width() <= m.width {
			l = next
		}
	}
	switch {
	case m.missed != nil:
		return top.Line{{Text: "reading: " + text.Clean(m.missed.Error()), Role: top.Alarm}, {Text: "  (trying again)", Role: top.Dim}}
	case m.mode == filter:
		l = top.Line{{Text: "filter: ", Role: top.Key}, {Text: m.opt.Filter, Role: top.Strong}, {Text: "_"}}
		if l.Width() < m.width-30 {
			l = append(l, top.Span{Text: "   Enter keeps it, Esc clears it", Role: top.Dim})
		}
		return l
	case m.mode == choosing:
		l = top.Line{{Text: "columns: ", Role: top.Key}}
		for i, s := range top.Optional {
			name := s.String()
			if m.opt.Hidden.Has(s) {
				name += " (hidden)"
			}
			key(strconv.Itoa(i+1), name)
		}
		key("Esc", "back")
		return l
	case m.mode != list:
		key("Esc", "back")
		key("j k", "scroll")
		key("q", "quit")
		return l
	}
	if m.paused {
		l = top.Line{{Text: "PAUSED ", Role: top.Alarm}}
		key("f", "go on")
	}
	if m.opt.Filter != "" {
		l = append(l, top.Span{Text: "filter " + m.opt.Filter + "  ", Role: top.Found})
		key("Esc", "clear")
	}
	if m.table != nil && len(m.table.Rows) > m.body() {
		all := len(m.table.Rows)
		key(fmt.Sprintf("%d-%d of %d", m.top+1, min(m.top+m.body(), all), all), "rows")
	}
	key("?", "help")
	key("q", "quit")
	if m.opt.Flat {
		key("t", "tree")
	} else {
		key("t", "list")
		key("Space", "fold")
	}
	key("/", "filter")
	key("c m d n w p P N", "sort")
	key("r", "reverse")
	key("i", "details")
	if !m.opt.Flat {
		key("s", "sums")
	}
	if m.opt.HideIdle {
		key("z", "show idle")
	} else {
		key("z", "hide idle")
	}
	key("v", "columns")
	key("f", "pause")
	return l
}

// helpText lists the keys; after column 15 what they do.
const helpText = `
up down j k    move; PgUp PgDn Home End (g G) too; the cursor follows its workload
Space Enter    fold or unfold what is below; left and right too; - folds all, * unfolds all
t              tree or flat list
s              in the tree, parents with all that is below them (rows then overlap)
c m d n        sort by CPU, memory, disk, network
w p P N        sort by power in watts, PIDs, pressure, name
r              reverse the order
/              filter by a part of name, path or kind; Esc clears it
z              show or hide idle workloads: those that used no CPU, disk or network in
               the last ten readings, and hold less than 1 % of the memory
v              choose columns
%              CPU in cores or in percent of one CPU
i              details: the last readings, and all that a workload used, each
               figure with its quality
f              freeze or go on; metering goes on all the time
wheel          move by three rows; scroll help and details
click          select a row; on the selected one: fold or unfold it; on a
               title: sort by it, on the same one again: reverse. With Shift
               the mouse selects text in the terminal as usual
? h            this help
q Ctrl-C       quit
`

// figuresText explains the figures of the table.
const figuresText = `
–  absent: it cannot be measured on this machine. It is not zero.
~  apportioned: a measured total, divided by a rule.   ≈  modelled: computed.
A row shows what its workload used and nothing below it did, so that the rows add
up to the machine; a folded row shows its whole subtree. Sums leave out the absent.
CPU is in cores, memory in bytes (Ki = 1024), traffic in bytes per second; pressure
is the share of the time in which some task waited for CPU, memory or I/O. Power is
what a row's own activity made the machine draw; what the machine draws anyway is in
the row idle, undivided. i shows by how much it may be off.
`

func (m *model) helpLines() []top.Line {
	lines := []top.Line{{{Text: "mete top", Role: top.Strong}, {Text: ": what every workload of this machine uses, live"}}, nil}
	for s := range strings.Lines(strings.TrimSpace(helpText)) {
		s = strings.TrimRight(s, "\n")
		lines = append(lines, top.Line{{Text: s[:15], Role: top.Key}, {Text: s[15:]}})
	}
	lines = append(lines, nil)
	figures := figuresText
	if m.opt.ASCII {
		figures = strings.NewReplacer("–", "-", "≈", "=").Replace(figures)
	}
	for s := range strings.Lines(strings.TrimSpace(figures)) {
		lines = append(lines, top.Line{{Text: strings.TrimRight(s, "\n")}})
	}
	if m.shown != nil {
		if notes := top.Notes(m.shown, m.width, m.opt); len(notes) > 0 {
			lines = append(append(lines, nil), notes...)
		}
	}
	return lines
}
