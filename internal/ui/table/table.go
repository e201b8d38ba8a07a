// Package table writes answers of the API as tables for terminals.
package table

import (
	"encoding/json"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// maxNameWidth is the largest width of a name in a table.
const maxNameWidth = 48

// A Style says how a table is written.
type Style struct {
	Zone  *time.Location // of times
	ASCII bool           // use no other characters

	// wattHours is true if energies are written in watt-hours, as people pay for them, else they are in joules. A table has
	// one of the two, so that its rows can be compared.
	wattHours bool
}

// energyIn returns the style for a table of energies, in joules.
func (s Style) energyIn(energies iter.Seq[float64]) Style {
	for v := range energies {
		s.wattHours = s.wattHours || v >= unit.JoulesPerWh
	}
	return s
}

// known returns a figure of the elements of a list that have it.
func known[E any](list []E, of func(*E) *json.Number) iter.Seq[float64] {
	return func(yield func(float64) bool) {
		for i := range list {
			if n := of(&list[i]); n != nil && !yield(floatOf(n)) {
				return
			}
		}
	}
}

// joules writes an energy, in joules.
func (s Style) joules(v float64) string {
	if s.wattHours {
		return unit.WattHours(v / unit.JoulesPerWh)
	}
	return unit.Joules(v)
}

// absent stands for a figure that is absent.
func (s Style) absent() string {
	if s.ASCII {
		return "-"
	}
	return "–"
}

// text removes control characters from a name and cuts it to its width; an empty one is
// (none).
func (s Style) text(name string) string {
	if name == "" {
		return "(none)"
	}
	name = text.Clean(name)
	if s.ASCII {
		name = strings.Map(func(r rune) rune {
			if r >= utf8.RuneSelf {
				return '?'
			}
			return r
		}, name)
	}
	return top.Line{{Text: name}}.Fit(maxNameWidth, s.ASCII).String()
}

// sentence removes control characters from a text of the server.
func (s Style) sentence(words string) string { return text.Clean(words) }

// time writes an instant.
func (s Style) time(t *time.Time) string {
	if t == nil {
		return s.absent()
	}
	return t.In(s.Zone).Format(time.DateTime)
}

// A column of a table shows one cell of each element: numbers at its right edge.
type column[T any] struct {
	title string
	right bool
	cell  func(*T) string
}

// write writes elements below the titles of columns, each as wide as its widest cell. A
// nil element is a rule. No line ends in blanks.
func write[T any](elements iter.Seq[*T], cols []column[T]) string {
	cells := [][]string{nil}
	for _, c := range cols {
		cells[0] = append(cells[0], c.title)
	}
	for v := range elements {
		var row []string
		for i := 0; v != nil && i < len(cols); i++ {
			row = append(row, cols[i].cell(v))
		}
		cells = append(cells, row)
	}
	width := make([]int, len(cols))
	for _, row := range cells {
		for i, s := range row {
			width[i] = max(width[i], top.Width(s))
		}
	}
	total := 2 * (len(cols) - 1)
	for _, w := range width {
		total += w
	}
	var b strings.Builder
	for _, row := range cells {
		if row == nil {
			b.WriteString(strings.Repeat("-", total) + "\n")
			continue
		}
		var line strings.Builder
		for i, s := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			blank := strings.Repeat(" ", width[i]-top.Width(s))
			if cols[i].right {
				s, blank = blank, s
			}
			line.WriteString(s + blank)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// each yields a pointer to each element.
func each[T any](list []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// plural writes a number and a noun.
func plural(n int, what string) string {
	s := whole(int64(n)) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}
