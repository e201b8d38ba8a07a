package top

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
)

// Header returns the lines that describe the machine: its identity and time, its CPU time
// and memory, its power, its traffic. Width 0 means unlimited.
func Header(m *live.Machine, width int, o Options) []Line {
	if m.Fleet != nil {
		return fleetHeader(m, width, o)
	}
	lines := []Line{
		title(m, width, o),
		processor(m, width, o),
		memory(m, width, o),
		energy(m, o),
		join(width, o, Line{{"Disk ", Title}},
			labeled("read ", flowIn(m.Disk, o)), labeled("written ", flowOut(m.Disk, o)),
			Line{{"Net ", Title}, {"received ", Dim}, {flowIn(m.Network, o), Plain}}, labeled("sent ", flowOut(m.Network, o)),
			labeled("mete itself ", fmt.Sprintf("%.2f CPU s/min, %s", m.Self.CPUSecondsPerMinute, unit.Bytes(float64(m.Self.RSSBytes))))),
	}
	if m.Simulated != "" {
		lines = slices.Insert(lines, 1, Line{{"SIMULATED POWER ", Alarm}, {safe(m.Simulated, o) + ": nobody measured it, nor what follows from it", Plain}})
	}
	for i := range lines {
		lines[i] = lines[i].Fit(widthOr(width, lines[i]), o.ASCII)
	}
	return lines
}

// flowIn and flowOut format the rates of a flow, or its absence.
func flowIn(f *live.Flow, o Options) string {
	if f == nil {
		return glyphsOf(o).absent
	}
	return rate(f.In)
}

func flowOut(f *live.Flow, o Options) string {
	if f == nil {
		return glyphsOf(o).absent
	}
	return rate(f.Out)
}

// Notes returns one line for each thing that is absent on the machine, and for each
// accounting error.
func Notes(m *live.Machine, width int, o Options) []Line {
	var out []Line
	add := func(r Role, label, text string) {
		l := Line{{label, r}, {safe(text, o), Plain}}
		out = append(out, l.Fit(widthOr(width, l), o.ASCII))
	}
	if n := m.Balance.Violations; n > 0 {
		add(Alarm, "error: ", fmt.Sprintf("%d times the rows did not add up to the machine; please report this", n))
	}
	if n := m.Balance.Lost; n > 0 {
		add(Notice, "lost: ", fmt.Sprintf("%d births or ends of groups in the last tick were not seen; their parents hold what they used", n))
	}
	for _, n := range m.Notes {
		add(Notice, "note: ", n)
	}
	return out
}

func title(m *live.Machine, width int, o Options) Line {
	return join(width, o, Line{{safe(m.Host, o), Strong}},
		Line{{m.Time.Format("15:04:05 MST"), Plain}},
		Line{{plural(m.CPUs, "CPU"), Plain}},
		Line{{plural(len(m.Rows), "workload"), Plain}},
		Line{{"reader ", Dim}, {safe(m.Reader, o), Plain}},
		Line{{"tick ", Dim}, {strconv.FormatFloat(m.Tick.Seconds(), 'f', 2, 64) + " s", Plain}})
}

// processor describes the use of CPU time.
func processor(m *live.Machine, width int, o Options) Line {
	c := &m.CPU
	n := func(v float64) string {
		if o.Percent {
			return digits(v*100, 1) + "%"
		}
		return digits(v, 2)
	}
	of := " of " + n(c.Whole) + " CPUs used"
	if o.Percent {
		of = " of " + n(c.Whole) + " used"
	}
	return join(width, o, bar("CPU  ", width, o, c.Whole, c.Workloads, c.System),
		Line{{n(c.Workloads + c.System), Strong}, {of, Plain}},
		Line{{"workloads ", Work}, {n(c.Workloads), Plain}},
		Line{{"system ", Sys}, {n(c.System), Plain}},
		Line{{"idle ", Dim}, {n(c.Idle), Plain}},
		Line{{"stolen ", Dim}, {n(c.Steal), Plain}})
}

func memory(m *live.Machine, width int, o Options) Line {
	c := &m.Memory
	b := func(v int64) string { return unit.Bytes(float64(v)) }
	return join(width, o, bar("Mem  ", width, o, float64(c.Whole), float64(c.Workloads), float64(c.System)),
		Line{{b(c.Workloads + c.System), Strong}, {" of " + b(c.Whole), Plain}},
		Line{{"workloads ", Work}, {b(c.Workloads), Plain}},
		Line{{"system ", Sys}, {b(c.System), Plain}},
		Line{{"free ", Dim}, {b(c.Idle), Plain}},
		Line{{"available ", Dim}, {b(c.Available), Plain}})
}

// energy formats the machine's power with its error, its idle part and its source.
func energy(m *live.Machine, o Options) Line {
	e := m.Energy
	if e == nil {
		return Line{{"Power ", Title}, {glyphsOf(o).absent, Dim}, {"  not known on this machine", Dim}}
	}
	pm := glyphsOf(o).pm
	band := func(v, off float64) string { return unit.Watts(v) + " " + pm + unit.Watts(off) }
	parts := []Line{{{"idle ", Dim}, {unit.Watts(e.Idle), Plain}}}
	if len(e.Domains) == 1 {
		d := &e.Domains[0]
		parts = append(parts, Line{{d.Quality.String() + ": ", Dim}, {safe(d.Source, o), Plain}})
	} else {
		for i := range e.Domains {
			d := &e.Domains[i]
			parts = append(parts, Line{{d.Name + " ", Dim}, {Mark(d.Quality, o.ASCII) + band(d.Watts, d.Error), Plain},
				{" " + d.Quality.String() + ": " + safe(d.Source, o), Dim}})
		}
	}
	for _, level := range slices.Sorted(maps.Keys(e.Ratios)) {
		parts = append(parts, Line{{"parts/" + safe(level, o) + " ", Dim}, {percent(e.Ratios[level]), Plain}})
	}
	line := Line{{"Power ", Title}, {Mark(e.Quality, o.ASCII) + band(e.Watts, e.Error), Strong}}
	for _, p := range parts { // cut the source rather than leave it out
		line = append(append(line, Span{"  ", Plain}), p...)
	}
	return line
}

func labeled(label, value string) Line { return Line{{label, Dim}, {value, Plain}} }

func rate(v float64) string { return unit.Bytes(v) + "/s" }

// bar draws the parts of the whole used by workloads and by the system.
func bar(label string, width int, o Options, whole, work, sys float64) Line {
	n := 30
	if width > 0 {
		n = min(max(width/4, 8), 48)
	}
	part := func(v float64) int {
		if !(whole > 0) || !(v > 0) {
			return 0
		}
		return int(math.Round(min(v/whole, 1) * float64(n)))
	}
	w := part(work)
	s := max(0, part(work+sys)-w)
	g := glyphsOf(o)
	return Line{{label, Title}, {strings.Repeat(g.work, w), Work}, {strings.Repeat(g.sys, s), Sys},
		{strings.Repeat(g.free, n-w-s), Free}}
}

// join puts parts side by side, as many as fit; the first one always stays.
func join(width int, o Options, first Line, parts ...Line) Line {
	line := first
	for i, p := range parts {
		gap := Span{"  ", Plain}
		if i == 0 && strings.HasSuffix(line.String(), " ") {
			gap.Text = ""
		}
		next := append(append(line[:len(line):len(line)], gap), p...)
		if width > 0 && next.Width() > width {
			break
		}
		line = next
	}
	return line
}
