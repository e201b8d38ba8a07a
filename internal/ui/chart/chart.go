// Package chart formats the answer of a PromQL query for people and for programs: as a
// chart, as a table and as CSV. Charts are lines of cells of a given width; roles select
// their look; see package top.
package chart

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/prom/result"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// Options select how to format an answer.
type Options struct {
	Width, Height int // of a chart in cells, including its axes and excluding its legend
	From, To      time.Time
	Step          time.Duration // time between two points; a longer interval is a gap
	Zone          *time.Location
	Unit          Unit
	ASCII         bool // only ASCII characters
	Color         bool // distinguish series by color
}

// maxSeries is how many series a chart shows.
const maxSeries = 6

// Minimum size of a chart: its axes need some room.
const (
	minWidth  = 30
	minHeight = 5
)

// roles distinguish series.
var roles = [maxSeries]top.Role{top.Series1, top.Series2, top.Series3, top.Series4, top.Series5, top.Series6}

// A plottedSeries is one series of a chart.
type plottedSeries struct {
	*result.Series
	name                string
	last, low, high, at float64
	role                top.Role
	letter              rune // that draws it without colors
}

// Chart draws the series of a range: if there are many, those with the largest mean. No
// line is wider than o.Width. An answer without a finite value has no chart.
func Chart(a *result.Answer, o Options) []top.Line {
	o.Width, o.Height = max(o.Width, minWidth), max(o.Height, minHeight)
	all := rankSeries(a)
	if len(all) == 0 {
		return nil
	}
	list := all[:min(len(all), maxSeries)]
	names := nameSeries(list)
	for i := range list {
		list[i].name, list[i].role, list[i].letter = names[i], roles[i], rune('a'+i)
		if !o.Color && len(list) == 1 {
			list[i].letter = '*'
		}
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range list {
		lo, hi = min(lo, list[i].low), max(hi, list[i].high)
	}
	lines := []top.Line{head(o)}
	lines = append(lines, o.body(list, axisOf(lo, hi, max(2, o.Height/4), o.Unit))...)
	lines = append(lines, o.legend(list)...)
	if n := len(all) - len(list); n > 0 {
		lines = append(lines, top.Line{{Text: fmt.Sprintf("%d more series with smaller means are not drawn: use topk() or sum by () for fewer series, -o csv for all", n), Role: top.Dim}})
	}
	for i := range lines {
		lines[i] = lines[i].Fit(o.Width, o.ASCII)
	}
	return lines
}

// head describes the axes.
func head(o Options) top.Line {
	layout := "15:04:05"
	if o.To.Sub(o.From) >= 20*time.Hour {
		layout = time.DateTime
	}
	span := o.From.In(o.Zone).Format(layout) + " to " + o.To.In(o.Zone).Format(layout+" MST") + ", a point every " + length(o.Step)
	if name := o.Unit.Name(); name != "" {
		return top.Line{{Text: name, Role: top.Title}, {Text: "  " + span, Role: top.Dim}}
	}
	return top.Line{{Text: span, Role: top.Dim}}
}

// length formats a duration without zero units.
func length(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// rankSeries returns the series that have a finite value, the largest mean first.
func rankSeries(a *result.Answer) (list []plottedSeries) {
	for i := range a.Series {
		d := plottedSeries{Series: &a.Series[i], low: math.Inf(1), high: math.Inf(-1)}
		n := 0.0
		for _, p := range d.Points {
			if finite(p.Value) {
				n++
				d.at += (p.Value - d.at) / n
				d.last, d.low, d.high = p.Value, min(d.low, p.Value), max(d.high, p.Value)
			}
		}
		if n > 0 {
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b plottedSeries) int { return cmp.Compare(b.at, a.at) })
	return list
}

// finite reports whether a value can be drawn.
func finite(v float64) bool { return math.Abs(v) < maxValue }

// nameSeries names each series by the labels in which they differ, a single one by all its
// labels. It omits workload ids if names are unique.
func nameSeries(list []plottedSeries) (names []string) {
	same := map[string]bool{}
	if len(list) > 1 {
		for l, v := range list[0].Labels {
			same[l] = !slices.ContainsFunc(list, func(d plottedSeries) bool { return d.Labels[l] != v })
		}
	}
	called := map[string]bool{}
	for _, d := range list {
		called[d.Labels["name"]] = true
	}
	for i := range list {
		var parts []string
		for _, l := range slices.Sorted(maps.Keys(list[i].Labels)) {
			v := text.Clean(list[i].Labels[l])
			switch {
			case same[l], l == "workload" && len(called) == len(list) && !called[""]:
			case l == "__name__":
				parts = slices.Insert(parts, 0, v)
			default:
				parts = append(parts, text.Clean(l)+"="+v)
			}
		}
		if len(parts) == 0 {
			parts = []string{"value"}
		}
		names = append(names, strings.Join(parts, " "))
	}
	return names
}

// body returns the canvas with its axes.
func (o Options) body(list []plottedSeries, y axis) (lines []top.Line) {
	rows := o.Height - 2
	wide := 0
	labels := make([]string, rows)
	steps := math.Round((y.hi - y.lo) / y.step)
	for i := 0.0; i <= steps; i++ {
		row := rows - 1 - int(math.Round(i/steps*float64(rows-1)))
		v := y.lo + i*y.step
		if math.Abs(v) < y.step/1e6 {
			v = 0
		}
		labels[row] = o.Unit.tick(v)
		wide = max(wide, top.Width(labels[row]))
	}
	c := newCanvas(max(1, o.Width-wide-2), rows)
	// Draw the largest last, on top of the others.
	for i := len(list) - 1; i >= 0; i-- {
		o.draw(c, &list[i], y, len(list) == 1)
	}
	side, joint, corner, floor := "│", "┤", "└", "─"
	if o.ASCII {
		side, joint, corner, floor = "|", "+", "+", "-"
	}
	for i, label := range labels {
		edge := side
		if label != "" {
			edge = joint
		}
		lines = append(lines, append(top.Line{{Text: strings.Repeat(" ", wide-top.Width(label)) + label + " ", Role: top.Plain}, {Text: edge, Role: top.Dim}}, c.line(i)...))
	}
	under, text := o.times(c.width, floor)
	lines = append(lines, top.Line{{Text: strings.Repeat(" ", wide+1) + corner + under, Role: top.Dim}})
	return append(lines, top.Line{{Text: strings.Repeat(" ", wide+2) + text, Role: top.Plain}})
}

// column returns the position of an instant in a field of n columns.
func (o Options) column(t time.Time, n int) int {
	length := o.To.Sub(o.From)
	if length <= 0 {
		return 0
	}
	return int(math.Round(float64(t.Sub(o.From)) / float64(length) * float64(n-1)))
}

// times returns the line of the time axis and its labels.
func (o Options) times(width int, floor string) (line, text string) {
	notch := "┬"
	if o.ASCII {
		notch = "+"
	}
	under := slices.Repeat([]string{floor}, width)
	free := 0
	for _, m := range timeMarks(o.From, o.To, width/10, o.Zone) {
		at := o.column(m.at, width)
		begin := min(max(at-len(m.text)/2, 0), width-len(m.text))
		if begin < free || at < 0 || at >= width {
			continue
		}
		under[at] = notch
		text += strings.Repeat(" ", begin-len(text)) + m.text
		free = begin + len(m.text) + 1
	}
	return strings.Join(under, ""), text
}

// draw draws a series, with gaps for missing values.
func (o Options) draw(c *canvas, d *plottedSeries, y axis, alone bool) {
	wide, high := 2*c.width, 4*c.height
	set := func(x, y int) { c.dot(x, y, d.role) }
	if o.ASCII || !o.Color && !alone {
		wide, high = c.width, c.height
		set = func(x, y int) { c.put(x, y, d.letter, d.role) }
	}
	// The ticks are in the middle of their cells.
	top, bottom := float64(high/c.height-1)/2, float64(high-1)-float64(high/c.height-1)/2
	var before *result.Point
	for i := range d.Points {
		p := &d.Points[i]
		if !finite(p.Value) {
			before = nil
			continue
		}
		if before == nil || p.Time.Sub(before.Time) > o.Step*3/2 {
			before = p
		}
		place := func(p *result.Point) (int, int) {
			return o.column(p.Time, wide), int(math.Round(bottom - (p.Value-y.lo)/(y.hi-y.lo)*(bottom-top)))
		}
		x0, y0 := place(before)
		x1, y1 := place(p)
		drawLine(x0, y0, x1, y1, set)
		before = p
	}
}

// legend describes each series: its look, its name, and its values.
func (o Options) legend(list []plottedSeries) (lines []top.Line) {
	var names, last, low, high int
	for i := range list {
		d := &list[i]
		names = max(names, top.Width(d.name))
		last, low, high = max(last, top.Width(o.Unit.Write(d.last))), max(low, top.Width(o.Unit.Write(d.low))), max(high, top.Width(o.Unit.Write(d.high)))
	}
	figures := last + low + high + len("  last   min   max ")
	names = max(8, min(names, o.Width-figures-2))
	for i := range list {
		d := &list[i]
		sign := "━"
		if o.ASCII || !o.Color && len(list) > 1 {
			sign = string(d.letter)
		}
		name := top.Line{{Text: d.name}}
		if o.ASCII {
			name[0].Text = asciiOnly(name[0].Text)
		}
		name = name.Fit(names, o.ASCII)
		l := append(top.Line{{Text: sign + " ", Role: d.role}}, name...)
		l = append(l, top.Span{Text: strings.Repeat(" ", names-name.Width())})
		for _, f := range []struct {
			label string
			wide  int
			value float64
		}{{"  last ", last, d.last}, {"  min ", low, d.low}, {"  max ", high, d.high}} {
			text := o.Unit.Write(f.value)
			l = append(l, top.Span{Text: f.label, Role: top.Dim}, top.Span{Text: strings.Repeat(" ", f.wide-top.Width(text)) + text})
		}
		lines = append(lines, l)
	}
	return lines
}

// asciiOnly removes all characters that are not ASCII.
func asciiOnly(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return '?'
		}
		return r
	}, s)
}
