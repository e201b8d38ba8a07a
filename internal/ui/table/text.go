package table

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// A figureColumn is a column of figures.
type figureColumn struct {
	title string
	res   usage.Resource // of amount and average
	form  v1.FigureKind  // what to show; energies include idle energy
	peak  bool           // a peak, which has no sum
}

var columns = []figureColumn{
	{title: "CPU TIME", res: usage.CPU},
	{title: "CORES", res: usage.CPU, form: v1.LevelAverage},
	{title: "MEMORY", res: usage.Memory, form: v1.LevelAverage},
	{title: "PEAK", res: usage.MemoryPeak, peak: true},
	{title: "ENERGY", form: v1.EnergySum},
	{title: "POWER", form: v1.PowerAverage},
	{title: "READ", res: usage.DiskRead},
	{title: "WRITTEN", res: usage.DiskWritten},
	{title: "RECEIVED", res: usage.NetworkRx},
	{title: "SENT", res: usage.NetworkTx},
	{title: "STARTED", res: usage.Processes},
}

// Text formats an answer as a table for people: a row for each group, then system and idle,
// then the sum beside the machines' capacity. It contains no control characters, whatever
// workloads are named.
func Text(a *query.Answer, s Style) string {
	var b strings.Builder
	b.WriteString(span(a, s) + "\n")
	if len(a.Groups) == 0 && a.OtherGroups == 0 && len(a.NestedGroups) == 0 {
		if a.Nested == query.NestedOnly {
			b.WriteString("no machine was a guest of another one in this range\n")
		} else {
			b.WriteString("nothing is booked in this range\n")
		}
		b.WriteString(s.guests(a))
		b.WriteString(gaps(a))
		return b.String()
	}
	var titles []string
	for _, d := range a.By {
		titles = append(titles, strings.ToUpper(s.text(string(d))))
	}
	cols := textColumns(titles...)
	for _, c := range columns {
		if c.form == v1.EnergySum && a.Idle != "" {
			c.title += " (ACTIVE + IDLE)"
		}
		cols = append(cols, column{c.title, true})
	}

	var rows, system, idle [][]string
	var seen qualityMarks
	for i := range a.Groups {
		g := &a.Groups[i]
		var keys []string
		for _, k := range g.Keys {
			keys = append(keys, s.text(k))
		}
		switch v1.ResidualKind(a.By, g.Keys) {
		case "idle":
			// Idle has CPU time, memory and energy only; leave the other cells empty
			// instead of absent.
			idle = append(idle, s.row(keys, &g.Usage, a.AveragedOver, &qualityMarks{}, func(c figureColumn) bool { return c.quality(&g.Usage) == usage.Absent }))
		case "system":
			system = append(system, s.row(keys, &g.Usage, a.AveragedOver, &seen, nil))
		default:
			rows = append(rows, s.row(keys, &g.Usage, a.AveragedOver, &seen, nil))
		}
	}
	label := func(text string) []string {
		keys := make([]string, len(a.By))
		keys[0] = text
		return keys
	}
	if a.OtherGroups > 0 {
		rows = append(rows, s.row(label(plural(a.OtherGroups, "other")), &a.Other, a.AveragedOver, &seen, nil))
	}
	rows = slices.Concat(rows, system, idle)
	sum := v1.Sum(a)
	rows = append(rows, nil, s.row(label("SUM"), &sum, a.AveragedOver, &seen, func(c figureColumn) bool { return c.peak }))
	if a.Capacity.Present != 0 {
		rows = append(rows, s.row(label("MACHINE HAD"), &a.Capacity, a.AveragedOver, &seen, func(c figureColumn) bool { return c.peak || c.quality(&a.Capacity) == usage.Absent }))
	}
	if len(a.NestedGroups) > 0 {
		rows = append(rows, nil)
	}
	for i := range a.NestedGroups {
		g := &a.NestedGroups[i]
		keys := []string{s.inside() + s.text(g.Keys[0])}
		for _, k := range g.Keys[1:] {
			keys = append(keys, s.text(k))
		}
		empty := func(c figureColumn) bool {
			return v1.ResidualKind(a.By, g.Keys) == "idle" && c.quality(&g.Usage) == usage.Absent
		}
		rows = append(rows, s.row(keys, &g.Usage, a.AveragedOver, &seen, empty))
	}
	if a.NestedOmitted > 0 {
		rows = append(rows, append(label(s.inside()+plural(a.NestedOmitted, "other")), make([]string, len(columns))...))
	}
	b.WriteString(render(cols, rows))
	b.WriteString(notes(a, &sum))
	b.WriteString(s.guests(a))
	b.WriteString(s.legend(&seen))
	b.WriteString(gaps(a))
	return b.String()
}

// inside marks the name of a row of guests.
func (s Style) inside() string {
	if s.ASCII {
		return "> "
	}
	return "↳ "
}

// guests describes what was left out because other figures include it.
func (s Style) guests(a *query.Answer) string {
	if a.NestedNodes == 0 {
		return ""
	}
	verb, whose := "is", "its host's"
	if a.NestedNodes > 1 {
		verb, whose = "are", "their hosts'"
	}
	text := fmt.Sprintf("%s %s within %s figures", plural(a.NestedNodes, "guest machine"), verb, whose)
	switch {
	case len(a.NestedGroups) > 0:
		text = s.inside() + text + ", and in no sum"
	case a.Nested == "":
		text += "; --nested only shows what ran inside"
	}
	return text + "\n"
}

// span describes the time range of the table.
func span(a *query.Answer, s Style) string {
	from, to := a.From.In(s.Zone), a.To.In(s.Zone)
	end := time.DateTime
	if from.Format(time.DateOnly) == to.Format(time.DateOnly) {
		end = time.TimeOnly
	}
	text := fmt.Sprintf("%s to %s (%s)", from.Format(time.DateTime), to.Format(end+" MST"), length(to.Sub(from)))
	if a.AveragedOver > 0 && a.AveragedOver != a.To.Sub(a.From) {
		text += ", averages over " + length(a.AveragedOver) + " with data"
	}
	return text
}

// length formats a duration in whole units.
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

// qualityMarks are the quality marks used in a table.
type qualityMarks struct{ apportioned, modelled, absent bool }

// row formats the figures of a row after its names, except the empty ones, and records the
// marks in use.
func (s Style) row(keys []string, t *query.Total, over time.Duration, seen *qualityMarks, empty func(figureColumn) bool) []string {
	cells := slices.Clone(keys)
	for _, c := range columns {
		if empty != nil && empty(c) {
			cells = append(cells, "")
			continue
		}
		switch c.quality(t) {
		case usage.Absent:
			seen.absent = true
		case usage.Apportioned:
			seen.apportioned = true
		case usage.Modelled:
			seen.modelled = true
		}
		cells = append(cells, s.cell(c, t, over))
	}
	return cells
}

// quality returns the quality of the figure in a total.
func (f figureColumn) quality(t *query.Total) usage.Quality {
	switch {
	case f.form == v1.EnergySum || f.form == v1.PowerAverage:
		_, q := t.AllEnergy()
		return q
	case t.Present.Has(f.res):
		return t.Quality.Get(f.res)
	}
	return usage.Absent
}

// cell formats one figure with its quality mark.
func (s Style) cell(c figureColumn, t *query.Total, over time.Duration) string {
	q := c.quality(t)
	if q == usage.Absent || (c.form == v1.LevelAverage || c.form == v1.PowerAverage) && over <= 0 {
		return s.absent()
	}
	return top.Mark(q, s.ASCII) + s.figure(c, t, over)
}

// figure formats one figure that is present.
func (s Style) figure(c figureColumn, t *query.Total, over time.Duration) string {
	switch c.form {
	case v1.EnergySum:
		return s.energy(t)
	case v1.PowerAverage:
		sum, _ := t.AllEnergy()
		return unit.Watts(sum.Float(unit.Microjoule) / over.Seconds())
	}
	d := c.res.Detail()
	v := t.Sum[c.res].Float(d.Unit)
	switch {
	case c.form == v1.LevelAverage && d.Unit == unit.Nanosecond:
		return strconv.FormatFloat(v/over.Seconds(), 'f', 3, 64)
	case c.form == v1.LevelAverage:
		return unit.Bytes(v / over.Seconds())
	case d.Unit == unit.Nanosecond:
		return cpuTime(v)
	case d.Unit == unit.Byte:
		return unit.Bytes(v)
	}
	return whole(int64(min(v, 1<<62)))
}

// energy formats the energy of a total, with the idle energy if it was divided, and the
// error of the sum.
func (s Style) energy(t *query.Total) string {
	active, seen := t.Energy()
	all, _ := t.AllEnergy()
	v := all.Float(unit.Microjoule)
	text := joules(v)
	switch {
	case t.IdleQuality == usage.Absent:
	case seen == usage.Absent:
		text = s.absent() + " + " + text
	default:
		text = parts(active.Float(unit.Microjoule), t.Idle.Float(unit.Microjoule))
	}
	if !t.Present.Has(usage.EnergyError) && t.IdleQuality == usage.Absent {
		return text
	}
	sign := " ±"
	if s.ASCII {
		sign = " +-"
	}
	off := t.Sum[usage.EnergyError].Plus(t.IdleError).Float(unit.Microjoule)
	switch percent := 100 * off / v; {
	case v == 0 || percent >= 1000 || off > 0 && percent < 0.05:
		return text + sign + joules(off)
	case percent < 9.95:
		return text + sign + strconv.FormatFloat(percent, 'f', 1, 64) + "%"
	default:
		return text + sign + strconv.FormatFloat(percent, 'f', 0, 64) + "%"
	}
}

const joulesPerKWh = 3.6e6

// joules formats an energy in kWh, or in a finer unit if it is small.
func joules(v float64) string {
	if kWh := v / joulesPerKWh; kWh >= 0.001 {
		return kilowattHours(kWh, kWh) + " kWh"
	}
	return unit.Joules(v)
}

// parts formats two parts of an energy in one unit.
func parts(a, b float64) string {
	if of := (a + b) / joulesPerKWh; of >= 0.001 {
		return kilowattHours(a/joulesPerKWh, of) + " + " + kilowattHours(b/joulesPerKWh, of) + " kWh"
	}
	return joules(a) + " + " + joules(b)
}

// kilowattHours formats v with the decimals that give the whole, of, three digits.
func kilowattHours(v, of float64) string {
	if of >= 99.95 {
		return whole(int64(math.Round(min(v, 1<<62))))
	}
	return strconv.FormatFloat(v, 'f', 2-int(math.Floor(math.Log10(of))), 64)
}

// cpuTime formats seconds so that they can be compared within a column.
func cpuTime(v float64) string {
	if v >= 100*3600 {
		return whole(int64(math.Round(v/3600))) + " h"
	}
	return unit.Seconds(time.Duration(v * 1e9))
}

// whole formats a number with thousands separators.
func whole(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// notes states whether the parts sum to the whole, and where idle is included.
func notes(a *query.Answer, sum *query.Total) string {
	var b strings.Builder
	var differ []string
	a.Capacity.Present.Each(func(r usage.Resource) {
		if sum.Sum[r] != a.Capacity.Sum[r] && (a.Idle == "" || !slices.Contains(usage.Energies[:], r)) {
			differ = append(differ, r.String())
		}
	})
	// Divided idle energy is known only in total, so compare the totals.
	parts, _ := sum.AllEnergy()
	if had, q := a.Capacity.Energy(); a.Idle != "" && q != usage.Absent && parts != had {
		differ = append(differ, "energy")
	}
	switch {
	case differ != nil:
		fmt.Fprintf(&b, "the sum is not what the machine had: %s\n", strings.Join(differ, ", "))
	case a.Capacity.Present != 0:
		b.WriteString("the rows add up to the machine: nothing is lost and nothing counted twice\n")
	}
	switch a.Idle {
	case power.Equal.String():
		b.WriteString("energy of idle machines is divided by the time that each workload was there\n")
	case power.Used.String():
		b.WriteString("energy of idle machines is divided by the CPU time that each workload used\n")
	}
	if !slices.ContainsFunc(a.By, func(d query.Dimension) bool { return !v1.IsMachineDimension(d) }) {
		b.WriteString("idle and system are in these rows; add another dimension to see them apart: --by " +
			text.Clean(string(a.By[0])) + ",kind\n")
	}
	return b.String()
}

// legend explains the marks in the table.
func (s Style) legend(seen *qualityMarks) string {
	var words []string
	if seen.apportioned {
		words = append(words, top.Mark(usage.Apportioned, s.ASCII)+" a measured total, apportioned")
	}
	if seen.modelled {
		words = append(words, top.Mark(usage.Modelled, s.ASCII)+" computed")
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
