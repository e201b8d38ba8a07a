// Package table writes the answers of the API as tables for people.
package table

import (
	"strings"
	"time"
	"unicode/utf8"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// maxNameWidth is how many cells of a name a table shows.
const maxNameWidth = 48

// A Style says for whom a table is written.
type Style struct {
	Zone  *time.Location // of the times shown
	ASCII bool           // use no other characters
}

// absent is what stands where nobody saw anything.
func (s Style) absent() string {
	if s.ASCII {
		return "-"
	}
	return "–"
}

// text makes a name from outside fit for a terminal; one that is empty shows
// that there is none.
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

// time writes an instant for people.
func (s Style) time(t time.Time) string {
	if t.IsZero() {
		return s.absent()
	}
	return t.In(s.Zone).Format(time.DateTime)
}

// A column of a table: numbers stand at its right.
type column struct {
	title string
	right bool
}

// textColumns makes columns of names of the titles.
func textColumns(titles ...string) (cols []column) {
	for _, t := range titles {
		cols = append(cols, column{title: t})
	}
	return cols
}

// numberColumns makes columns of numbers.
func numberColumns(titles ...string) (cols []column) {
	for _, t := range titles {
		cols = append(cols, column{t, true})
	}
	return cols
}

// render writes rows below their titles, each column as wide as it must be. A row
// without cells is a rule. No line ends in blanks.
func render(cols []column, rows [][]string) string {
	wide := make([]int, len(cols))
	total := 2 * (len(cols) - 1)
	for i, c := range cols {
		wide[i] = top.Width(c.title)
		for _, row := range rows {
			if i < len(row) {
				wide[i] = max(wide[i], top.Width(row[i]))
			}
		}
		total += wide[i]
	}
	var b strings.Builder
	line := func(cell func(i int) string) {
		var l strings.Builder
		for i, c := range cols {
			s := cell(i)
			blank := strings.Repeat(" ", wide[i]-top.Width(s))
			if i > 0 {
				l.WriteString("  ")
			}
			if c.right {
				l.WriteString(blank + s)
			} else {
				l.WriteString(s + blank)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(i int) string { return cols[i].title })
	for _, row := range rows {
		if len(row) == 0 {
			b.WriteString(strings.Repeat("-", total) + "\n")
			continue
		}
		line(func(i int) string { return row[i] })
	}
	return b.String()
}

// plural writes a number of things.
func plural(n int, what string) string {
	s := whole(int64(n)) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}
