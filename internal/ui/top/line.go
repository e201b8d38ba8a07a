package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"mete.dev/mete/internal/x/text"
)

// A Role is the meaning of a piece of text, for which its printer chooses a look.
type Role uint8

const (
	Plain   Role = iota
	Dim          // unimportant: branches, zeros, units
	Strong       // most important
	Title        // of a column
	Sorted       // title of the column that orders the rows
	Work         // used by workloads
	Sys          // used by the system
	Free         // not used
	Found        // match of the filter
	Notice       // notable: a quality mark, some pressure
	Alarm        // urgent
	Key          // a key of the keyboard
	Series1      // lines of a chart, each with its own look
	Series2
	Series3
	Series4
	Series5
	Series6

	// Roles is the number of roles.
	Roles
)

// A Span is a piece of a line.
type Span struct {
	Text string
	Role Role
}

// A Line is one line of text. It holds no control characters.
type Line []Span

// String returns the text without roles.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Width returns the number of terminal cells that l takes.
func (l Line) Width() int {
	w := 0
	for _, s := range l {
		w += Width(s.Text)
	}
	return w
}

// Fit cuts l to at most width cells; the last one then shows that text is missing.
func (l Line) Fit(width int, ascii bool) Line {
	if l.Width() <= width {
		return l
	}
	if width <= 0 {
		return nil
	}
	more := glyphsOf(Options{ASCII: ascii}).more
	var out Line
	left := width - 1
	for _, s := range l {
		w := Width(s.Text)
		if w <= left {
			out, left = append(out, s), left-w
			continue
		}
		if cut := ansi.Truncate(s.Text, left, ""); cut != "" {
			out = append(out, Span{cut, s.Role})
		}
		return append(out, Span{more, Dim})
	}
	return out
}

// Width returns the number of terminal cells that clean text takes.
func Width(s string) int {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return ansi.StringWidth(s)
		}
	}
	return len(s)
}

// safe returns Clean without characters that the terminal cannot draw.
func safe(s string, o Options) string {
	s = text.Clean(s)
	if !o.ASCII {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < 0x80 {
			return r
		}
		return '?'
	}, s)
}

// padLeft right-aligns s in a field.
func padLeft(s string, width int) string {
	return strings.Repeat(" ", max(0, width-Width(s))) + s
}

// glyphs are the drawing characters, each one cell wide.
type glyphs struct {
	branch, corner, trunk, blank string
	folded, more, absent, pm     string
	work, sys, free              string
	up, down                     string
	steps                        []rune // of a sparkline, from low to high
}

func glyphsOf(o Options) *glyphs {
	if o.ASCII {
		return &glyphs{branch: "|- ", corner: "`- ", trunk: "|  ", blank: "   ", folded: "+", more: ">", absent: "-", pm: "+-",
			work: "#", sys: "=", free: ".", up: "^", down: "*", steps: []rune("_.:-=+*#")}
	}
	return &glyphs{branch: "├─ ", corner: "└─ ", trunk: "│  ", blank: "   ", folded: "▸", more: "…", absent: "–", pm: "±",
		work: "█", sys: "▒", free: "░", up: "▲", down: "▼", steps: []rune("▁▂▃▄▅▆▇█")}
}
