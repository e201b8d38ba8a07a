package chart

import (
	"bytes"
	"encoding/csv"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/prom/result"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// maxLabelWidth is how many cells of a label's value a table shows.
const maxLabelWidth = 48

// labels are the names of all labels that a series has, the metric's own first.
func labels(a *result.Answer) []string {
	seen := map[string]bool{}
	for i := range a.Series {
		for l := range a.Series[i].Labels {
			seen[l] = true
		}
	}
	// In the order of bytes, __name__ is before all that is in small letters.
	return slices.Sorted(maps.Keys(seen))
}

// title is a label's name above its column.
func title(label string) string {
	if label == "__name__" {
		return "METRIC"
	}
	return strings.ToUpper(label)
}

// Table writes one value a line below titles. Values that have a unit are rounded
// for people; JSON and CSV have them as they are.
func Table(a *result.Answer, o Options) string {
	labels := labels(a)
	var titles []string
	for _, l := range labels {
		titles = append(titles, title(l))
	}
	ranged := a.Kind == "matrix"
	if ranged {
		titles = append(titles, "TIME")
	}
	rows := [][]string{append(titles, "VALUE")}
	for i := range a.Series {
		s := &a.Series[i]
		var cells []string
		for _, l := range labels {
			text := text.Clean(s.Labels[l])
			if o.ASCII {
				text = plain(text)
			}
			cells = append(cells, top.Line{{Text: text}}.Fit(maxLabelWidth, o.ASCII).String())
		}
		for _, p := range s.Points {
			row := slices.Clone(cells)
			if ranged {
				row = append(row, p.Time.In(o.Zone).Format(time.DateTime))
			}
			value := text.Clean(p.Text)
			if o.Unit != Unknown && a.Kind != "string" {
				value = o.Unit.Write(p.Value)
			}
			rows = append(rows, append(row, value))
		}
	}
	return align(rows)
}

// align writes rows with each column as wide as it must be, the last at the right.
// No line ends in blanks.
func align(rows [][]string) string {
	wide := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			wide[i] = max(wide[i], top.Width(c))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			blank := strings.Repeat(" ", wide[i]-top.Width(c))
			if i == len(row)-1 {
				b.WriteString(blank + c + "\n")
			} else {
				b.WriteString(c + blank + "  ")
			}
		}
	}
	return b.String()
}

// CSV writes one value a line, with its time and its labels, below their names.
// Times are UTC. Values are as the server wrote them.
func CSV(a *result.Answer) []byte {
	labels := labels(a)
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	put := func(row []string) { _ = w.Write(row) } // a buffer takes all
	put(append(append([]string{"time"}, labels...), "value"))
	for i := range a.Series {
		s := &a.Series[i]
		for _, p := range s.Points {
			row := []string{p.Time.UTC().Format("2006-01-02T15:04:05.999Z07:00")}
			for _, l := range labels {
				row = append(row, s.Labels[l])
			}
			put(append(row, p.Text))
		}
	}
	w.Flush()
	return b.Bytes()
}
