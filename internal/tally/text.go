package tally

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/unit"
	"mete.dev/mete/internal/view"
)

// A shown figure is a column of the table for people.
type shown struct {
	title   string
	res     meter.Resource
	average bool // the level over the length of the answer
	peak    bool // has no sum
}

var columns = []shown{
	{title: "CPU TIME", res: meter.CPU},
	{title: "CORES", res: meter.CPU, average: true},
	{title: "MEMORY", res: meter.Memory, average: true},
	{title: "PEAK", res: meter.MemoryPeak, peak: true},
	{title: "READ", res: meter.DiskRead},
	{title: "WRITTEN", res: meter.DiskWritten},
	{title: "RECEIVED", res: meter.NetworkRx},
	{title: "SENT", res: meter.NetworkTx},
	{title: "STARTED", res: meter.Processes},
}

// Text writes an answer as a table for people: a row for each group, then what
// no job caused, then the sum beside what the machines had. It holds no control
// characters, whatever a workload is called.
func Text(a *query.Answer, s Style) string {
	var b strings.Builder
	b.WriteString(span(a, s) + "\n")
	if len(a.Groups) == 0 && a.RestGroups == 0 {
		b.WriteString("nothing is booked in this range\n")
		b.WriteString(gaps(a))
		return b.String()
	}
	var titles []string
	for _, d := range a.By {
		titles = append(titles, strings.ToUpper(s.text(string(d))))
	}
	cols := names(titles...)
	for _, c := range columns {
		cols = append(cols, column{c.title, true})
	}

	var rows, system, idle [][]string
	var seen marks
	for i := range a.Groups {
		g := &a.Groups[i]
		var keys []string
		for _, k := range g.Keys {
			keys = append(keys, s.text(k))
		}
		switch noJob(a.By, g.Keys) {
		case "idle":
			// What lies idle has CPU time and memory only; the rest is not unseen.
			idle = append(idle, s.row(keys, &g.Usage, a.Over, &marks{}, func(c shown) bool { return !g.Usage.Present.Has(c.res) }))
		case "system":
			system = append(system, s.row(keys, &g.Usage, a.Over, &seen, nil))
		default:
			rows = append(rows, s.row(keys, &g.Usage, a.Over, &seen, nil))
		}
	}
	label := func(text string) []string {
		keys := make([]string, len(a.By))
		keys[0] = text
		return keys
	}
	if a.RestGroups > 0 {
		rows = append(rows, s.row(label(plural(a.RestGroups, "other")), &a.Rest, a.Over, &seen, nil))
	}
	rows = slices.Concat(rows, system, idle)
	sum := Sum(a)
	rows = append(rows, nil, s.row(label("SUM"), &sum, a.Over, &seen, func(c shown) bool { return c.peak }))
	if a.Whole.Present != 0 {
		rows = append(rows, s.row(label("MACHINE HAD"), &a.Whole, a.Over, &seen, func(c shown) bool { return c.peak || !a.Whole.Present.Has(c.res) }))
	}
	b.WriteString(table(cols, rows))
	b.WriteString(notes(a, &sum))
	b.WriteString(s.legend(&seen))
	b.WriteString(gaps(a))
	return b.String()
}

// span says what time the table is about.
func span(a *query.Answer, s Style) string {
	from, to := a.From.In(s.Zone), a.To.In(s.Zone)
	end := time.DateTime
	if from.Format(time.DateOnly) == to.Format(time.DateOnly) {
		end = time.TimeOnly
	}
	text := fmt.Sprintf("%s to %s (%s)", from.Format(time.DateTime), to.Format(end+" MST"), length(to.Sub(from)))
	if a.Over > 0 && a.Over != a.To.Sub(a.From) {
		text += ", averages over the " + length(a.Over) + " that there are"
	}
	return text
}

// length writes a length of time in whole units.
func length(d time.Duration) string {
	d = d.Round(time.Second)
	s := ""
	if n := d / (24 * time.Hour); n > 0 {
		s = plural(int(n), "day")
		if d %= 24 * time.Hour; d == 0 {
			return s
		}
		s += " "
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return s + text
}

// noJob returns what a group is that no job caused, idle or system, and "" of all
// others.
func noJob(by []query.Dimension, keys []string) string {
	for i, d := range by {
		if !machines(d) && (keys[i] == "idle" || keys[i] == "system") {
			return keys[i]
		}
	}
	return ""
}

// marks are the marks of quality that a table has.
type marks struct{ apportioned, modelled, absent bool }

// row writes the figures behind the names of a row, except those to leave empty,
// and notes the marks that are in it.
func (s Style) row(keys []string, t *query.Total, over time.Duration, seen *marks, empty func(shown) bool) []string {
	cells := slices.Clone(keys)
	for _, c := range columns {
		if empty != nil && empty(c) {
			cells = append(cells, "")
			continue
		}
		switch q := t.Quality.Get(c.res); {
		case !t.Present.Has(c.res) || q == meter.Absent:
			seen.absent = true
		case q == meter.Apportioned:
			seen.apportioned = true
		case q == meter.Modelled:
			seen.modelled = true
		}
		cells = append(cells, s.cell(c, t, over))
	}
	return cells
}

// cell writes one figure with the mark of its quality.
func (s Style) cell(c shown, t *query.Total, over time.Duration) string {
	q := t.Quality.Get(c.res)
	if !t.Present.Has(c.res) || q == meter.Absent || c.average && over <= 0 {
		return s.absent()
	}
	d := c.res.Detail()
	v := t.Sum[c.res].Float(d.Unit)
	text := ""
	switch {
	case c.average && d.Unit == unit.Nanosecond:
		text = strconv.FormatFloat(v/over.Seconds(), 'f', 3, 64)
	case c.average:
		text = unit.Bytes(v / over.Seconds())
	case d.Unit == unit.Nanosecond:
		text = cpuTime(v)
	case d.Unit == unit.Byte:
		text = unit.Bytes(v)
	default:
		text = whole(int64(min(v, 1<<62)))
	}
	return view.Mark(q, s.ASCII) + text
}

// cpuTime writes seconds so that they can be compared down a column.
func cpuTime(v float64) string {
	if v >= 100*3600 {
		return whole(int64(math.Round(v/3600))) + " h"
	}
	return unit.Seconds(time.Duration(v * 1e9))
}

// whole writes a number with its thousands apart.
func whole(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// notes says whether the parts are the whole, and where idle is.
func notes(a *query.Answer, sum *query.Total) string {
	var b strings.Builder
	var differ []string
	a.Whole.Present.Each(func(r meter.Resource) {
		if sum.Sum[r] != a.Whole.Sum[r] {
			differ = append(differ, r.String())
		}
	})
	switch {
	case differ != nil:
		fmt.Fprintf(&b, "the sum is not what the machine had: %s\n", strings.Join(differ, ", "))
	case a.Whole.Present != 0:
		b.WriteString("the rows add up to the machine: nothing is lost and nothing counted twice\n")
	}
	if !slices.ContainsFunc(a.By, func(d query.Dimension) bool { return !machines(d) }) {
		b.WriteString("idle and system are in these rows; add another dimension to see them apart: --by " +
			view.Clean(string(a.By[0])) + ",kind\n")
	}
	return b.String()
}

// legend explains the marks that are in the table.
func (s Style) legend(seen *marks) string {
	var words []string
	if seen.apportioned {
		words = append(words, view.Mark(meter.Apportioned, s.ASCII)+" a measured total, apportioned")
	}
	if seen.modelled {
		words = append(words, view.Mark(meter.Modelled, s.ASCII)+" computed")
	}
	if seen.absent {
		words = append(words, s.absent()+" nobody could see it (not zero)")
	}
	if words == nil {
		return ""
	}
	return strings.Join(words, "   ") + "\n"
}

func gaps(a *query.Answer) string {
	if a.Gaps == 0 {
		return ""
	}
	return fmt.Sprintf("gaps: %d in this range, see mete gaps\n", a.Gaps)
}
