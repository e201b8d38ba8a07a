package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Text formats the whole machine as plain text: header, notes, table, total. Width 0 means
// unlimited. No line ends in blanks.
func Text(m *live.Machine, width int, o Options) string {
	t := Arrange(m, o)
	lines := Header(m, width, o)
	lines = append(lines, Notes(m, width, o)...)
	lines = append(lines, nil, t.Titles(width, o))
	lines = append(lines, t.Lines(width, o)...)
	lines = append(lines, t.Foot(width, o)...)
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// Details describes one workload: its properties, its use in the last readings if p is not
// nil, its use in this tick, and its total use since it was first seen, each figure with its
// quality.
func Details(m *live.Machine, r *live.Row, p *Past, width int, o Options) []Line {
	var out []Line
	add := func(l Line) {
		out = append(out, l.Fit(widthOr(width, l), o.ASCII))
	}
	fact := func(label, value string) {
		if value != "" {
			add(Line{{pad(label, 10), Dim}, {safe(value, o), Plain}})
		}
	}
	add(Line{{safe(Label(r), o), Strong}})
	fact("kind", kindOf(r))
	fact("node", r.Node)
	fact("state", r.State)
	fact("id", string(r.ID))
	fact("path", r.Path)
	fact("within", parents(m, r))
	if r.Ended {
		fact("state", "ended in this tick")
	}
	if r.CPULimit != nil {
		fact("CPU limit", strconv.FormatFloat(*r.CPULimit, 'f', 2, 64)+" cores")
	}
	if r.MemoryLimit != nil {
		fact("mem limit", unit.Bytes(float64(*r.MemoryLimit)))
	}
	if r.Power != nil {
		fact("power", Mark(r.Quality[live.Power.String()], o.ASCII)+unit.Watts(*r.Power)+errorText(r.PowerError, unit.Watts, o)+"  "+r.Quality[live.Power.String()].String()+", in this tick")
	}
	add(nil)
	for _, l := range past(r, p, width, o) {
		add(l)
	}
	for _, l := range processes(m, r, o) {
		add(l)
	}
	if m.Fleet != nil {
		for _, l := range window(r, o) {
			add(l)
		}
		return out
	}
	add(Line{{pad("SINCE FIRST SEEN", 22) + padLeft("AMOUNT", 12), Title}, {"  QUALITY      WHAT", Title}})
	if l := total(r, o); l != nil {
		add(l)
	}
	for res := range usage.Metered.All() {
		name, d := res.String(), res.Detail()
		raw, ok := r.Total[name]
		q := r.Quality[name]
		if !ok || q == usage.Absent {
			if usage.Apart.Has(res) {
				continue // no traffic of the class, or neither a container nor a pod
			}
			add(Line{{pad(name, 22) + padLeft(glyphsOf(o).absent, 12), Dim}, {"  absent       " + d.Help, Dim}})
			continue
		}
		add(Line{{pad(name, 22), Plain}, {padLeft(safe(amount(d.Unit, raw), o), 12), Strong},
			{"  " + pad(q.String(), 13), Plain}, {d.Help, Dim}})
	}
	return out
}

// errorText formats the error of a figure, if it is known.
func errorText(v *float64, write func(float64) string, o Options) string {
	if v == nil {
		return ""
	}
	return " " + glyphsOf(o).pm + write(*v)
}

// total returns the line with the total energy of a workload and its error; nil if it has
// none.
func total(r *live.Row, o Options) Line {
	var sum float64
	var worst usage.Quality
	for _, res := range usage.Energies {
		v, err := strconv.ParseFloat(r.Total[res.String()], 64)
		if q := r.Quality[res.String()]; q != usage.Absent && err == nil {
			sum, worst = sum+v, max(worst, q)
		}
	}
	if worst == usage.Absent {
		return nil
	}
	text := unit.Joules(sum)
	if v, err := strconv.ParseFloat(r.Total[usage.EnergyError.String()], 64); err == nil {
		text += errorText(&v, unit.Joules, o)
	}
	return Line{{pad("energy", 12), Plain}, {padLeft(text, 22), Strong}, {"  " + pad(worst.String(), 13), Plain},
		{"of all parts of the machine, with its error", Dim}}
}

// processes lists r's CPU time in the latest tick by process; nil without a breakdown.
func processes(m *live.Machine, r *live.Row, o Options) []Line {
	b := m.Breakdown
	if b == nil || b.Workload != r.ID {
		return nil
	}
	const most = 12
	out := []Line{{{pad("PROCESSES, THIS TICK", 24) + padLeft("PID", 8) + padLeft("CPU", 9) + padLeft("RSS", 10) + padLeft("THREADS", 9), Title}}}
	line := func(name string, p live.Process) {
		pid, rss, threads := glyphsOf(o).absent, glyphsOf(o).absent, glyphsOf(o).absent
		if p.PID != 0 {
			pid, threads = strconv.Itoa(int(p.PID)), strconv.Itoa(p.Threads)
		}
		if p.RSS != nil {
			rss = unit.Bytes(float64(*p.RSS))
		}
		out = append(out, Line{{pad(safe(name, o), 24), Plain}, {padLeft(pid, 8), Dim},
			{padLeft(strconv.FormatFloat(p.CPU, 'f', 3, 64), 9), Strong}, {padLeft(rss, 10) + padLeft(threads, 9), Plain}})
	}
	rest := live.Process{}
	var total float64
	n := 0
	for i, p := range b.Processes {
		total += p.CPU
		switch {
		case p.PID == 0:
			line("ended in this tick", p)
		case i < most:
			line(p.Name, p)
		default:
			n++
			rest.CPU += p.CPU
		}
	}
	if n > 0 {
		line(plural(n, "other"), rest)
	}
	line("sum = the workload", live.Process{CPU: total})
	return append(out, nil)
}

// parents formats the path from the machine to r.
func parents(m *live.Machine, r *live.Row) string {
	rows := make(map[string]*live.Row, len(m.Rows))
	for i := range m.Rows {
		rows[string(m.Rows[i].ID)] = &m.Rows[i]
	}
	var names []string
	for p := rows[string(r.Parent)]; p != nil && len(names) < 32; p = rows[string(p.Parent)] {
		names = append(names, Label(p))
	}
	slices.Reverse(names)
	return strings.Join(names, " / ")
}

// amount formats a decimal of the base unit for people.
func amount(u unit.Unit, decimal string) string {
	v, err := strconv.ParseFloat(decimal, 64)
	if err != nil {
		return decimal
	}
	switch u {
	case unit.Nanosecond:
		if v > 1e9 {
			return fmt.Sprintf("%.0f h", v/3600)
		}
		return unit.Seconds(time.Duration(v * 1e9))
	case unit.Byte:
		return unit.Bytes(v)
	case unit.ByteSecond:
		return unit.Bytes(v/3600) + " h"
	case unit.Microjoule:
		return unit.Joules(v)
	case unit.Millicore:
		return strconv.FormatFloat(v, 'f', 3, 64) + " cores"
	}
	return unit.Number(v)
}
