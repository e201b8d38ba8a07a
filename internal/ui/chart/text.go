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

// maxLabelWidth is the maximum width of a label's value in a table, in cells.
const maxLabelWidth = 48

// labels returns the names of all labels of the series, the metric's own first.
func labels(a *result.Answer) []string {
	seen := map[string]bool{}
	for i := range a.Series {
		for l := range a.Series[i].Labels {
			seen[l] = true
		}
	}
	// In byte order, __name__ precedes lower-case names.
	return slices.Sorted(maps.Keys(seen))
}

// title returns a label's name as a column title.
func title(label string) string {
	if label == "__name__" {
		return "METRIC"
	}
	return strings.ToUpper(label)
}

// Table formats one value per line below titles. It rounds values with a unit; JSON and CSV
// have the exact ones.
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
				text = asciiOnly(text)
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

// align formats rows with columns of minimum width, the last one right-aligned. No line
// ends in blanks.
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

// CSV formats one value per line, with its time and its labels. Times are UTC. Values are
// as the server sent them.
func CSV(a *result.Answer) []byte {
	labels := labels(a)
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	put := func(row []string) { _ = w.Write(text.Fields(row)) } // a buffer never fails
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
