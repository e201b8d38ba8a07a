// Package table formats the answers of the API as tables for people.
package table

import (
	"strings"
	"time"
	"unicode/utf8"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// maxNameWidth is the maximum width of a name in a table, in cells.
const maxNameWidth = 48

// A Style selects how tables are formatted.
type Style struct {
	Zone  *time.Location // of the displayed times
	ASCII bool           // only ASCII characters
}

// absent returns the text for an absent figure.
func (s Style) absent() string {
	if s.ASCII {
		return "-"
	}
	return "–"
}

// text makes a name from outside printable on a terminal, with a mark for an empty one.
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

// time formats an instant for people.
func (s Style) time(t time.Time) string {
	if t.IsZero() {
		return s.absent()
	}
	return t.In(s.Zone).Format(time.DateTime)
}

// A column of a table; numbers are right-aligned.
type column struct {
	title string
	right bool
}

// textColumns returns text columns with the given titles.
func textColumns(titles ...string) (cols []column) {
	for _, t := range titles {
		cols = append(cols, column{title: t})
	}
	return cols
}

// numberColumns returns number columns with the given titles.
func numberColumns(titles ...string) (cols []column) {
	for _, t := range titles {
		cols = append(cols, column{t, true})
	}
	return cols
}

// render formats rows below their titles with columns of minimum width. A row without cells
// is a rule. No line ends in blanks.
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

// plural formats a count of things.
func plural(n int, what string) string {
	s := whole(int64(n)) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}
