package top

import (
	"io"
	"strings"

	"github.com/muesli/termenv"
)

// A Painter formats lines for a terminal. Its colors have contrast on black and on white
// (at least 4:1 for text), because the background of a terminal cannot be queried reliably.
type Painter struct {
	look [Roles]string // parameters of the escape sequence, "" for none
	// Color is true if the terminal shows colors.
	Color bool
}

// NewPainter returns the painter for a terminal: without color if NO_COLOR is set or the
// terminal has none, but always with bold and reverse.
func NewPainter(out io.Writer) *Painter {
	p := &Painter{}
	p.look[Strong] = "1"
	p.look[Title] = "1"
	p.look[Sorted] = "1;4"
	p.look[Found] = "1"
	p.look[Alarm] = "1"
	p.look[Key] = "1"
	profile := termenv.NewOutput(out).EnvColorProfile()
	if profile == termenv.Ascii {
		return p
	}
	p.Color = true
	// 256 colors: gray #767676, blue #0087d7, orange #af5f00, green #008700, red #d70000,
	// violet #af5faf, cyan #008787. A terminal with 16 colors uses the nearest of its
	// palette.
	colors := map[Role][2]string{
		Dim: {"38;5;243", "90"}, Title: {"1;38;5;243", "1"}, Sorted: {"1;38;5;32", "1;34"},
		Work: {"38;5;32", "34"}, Sys: {"38;5;130", "33"}, Free: {"38;5;243", "90"},
		Found: {"1;38;5;28", "1;32"}, Notice: {"38;5;130", "33"}, Alarm: {"1;38;5;160", "1;31"}, Key: {"1;38;5;32", "1;34"},
		Series1: {"38;5;32", "34"}, Series2: {"38;5;130", "33"}, Series3: {"38;5;28", "32"},
		Series4: {"38;5;160", "31"}, Series5: {"38;5;133", "35"}, Series6: {"38;5;30", "36"},
	}
	for role, c := range colors {
		p.look[role] = c[0]
		if profile == termenv.ANSI {
			p.look[role] = c[1]
		}
	}
	return p
}

// Line paints l.
func (p *Painter) Line(l Line) string {
	var b strings.Builder
	for _, s := range l {
		if look := p.look[s.Role]; look != "" && strings.TrimSpace(s.Text) != "" {
			b.WriteString("\x1b[" + look + "m" + s.Text + "\x1b[0m")
		} else {
			b.WriteString(s.Text)
		}
	}
	return b.String()
}

// Selected paints l as the selected row, over the whole width and in one color, so that it
// is readable with any roles.
func (p *Painter) Selected(l Line, width int) string {
	return "\x1b[7m" + l.String() + strings.Repeat(" ", max(0, width-l.Width())) + "\x1b[0m"
}
