package top

import (
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// fleetHeader returns the lines that describe a fleet, like [Header] for one machine.
func fleetHeader(m *live.Machine, width int, o Options) []Line {
	f := m.Fleet
	c, mem := &m.CPU, &m.Memory
	b := func(v int64) string { return unit.Bytes(float64(v)) }
	first := Line{{safe(f.Server, o), Strong}}
	nodes := Line{{plural(f.Nodes, "node"), Plain}}
	if f.Stale > 0 {
		nodes = append(nodes, Span{fmt.Sprintf(" (%d not heard)", f.Stale), Notice})
	}
	if f.Guests > 0 {
		nodes = append(nodes, Span{fmt.Sprintf(" (%d within others)", f.Guests), Dim})
	}
	lines := []Line{
		join(width, o, first, Line{{m.Time.Format("15:04:05 MST"), Plain}}, nodes, Line{{plural(m.CPUs, "CPU"), Plain}},
			Line{{plural(f.Workloads, "workload"), Plain}}),
		join(width, o, bar("CPU  ", width, o, c.Whole, c.Workloads, c.System),
			Line{{digits(c.Workloads+c.System, 2), Strong}, {" of " + digits(c.Whole, 2) + " CPUs used", Plain}},
			labeled("idle ", digits(c.Idle, 2))),
		join(width, o, bar("Mem  ", width, o, float64(mem.Whole), float64(mem.Workloads), float64(mem.System)),
			Line{{b(mem.Workloads + mem.System), Strong}, {" of " + b(mem.Whole), Plain}},
			labeled("free ", b(mem.Idle))),
		fleetPower(m.Energy, o),
		join(width, o, Line{{"Disk ", Title}},
			labeled("read ", flowIn(m.Disk, o)), labeled("written ", flowOut(m.Disk, o)),
			Line{{"Net ", Title}, {"received ", Dim}, {flowIn(m.Network, o), Plain}}, labeled("sent ", flowOut(m.Network, o)),
			Line{{"by workloads", Dim}}),
	}
	for i := range lines {
		lines[i] = lines[i].Fit(widthOr(width, lines[i]), o.ASCII)
	}
	return lines
}

// fleetPower formats the power of all machines together, with its error and the worst
// quality.
func fleetPower(e *live.Energy, o Options) Line {
	if e == nil {
		return Line{{"Power ", Title}, {glyphsOf(o).absent, Dim}, {"  no machine reports it", Dim}}
	}
	worst := e.Quality.String()
	if e.Quality != usage.Measured {
		worst += ", at worst"
	}
	return Line{{"Power ", Title}, {Mark(e.Quality, o.ASCII) + unit.Watts(e.Watts) + " " + glyphsOf(o).pm + unit.Watts(e.Error), Strong},
		{"  idle ", Dim}, {unit.Watts(e.Idle), Plain}, {"  " + worst, Dim}}
}

// window lists the use of a fleet's row in its node's latest window, each figure with its
// quality.
func window(r *live.Row, o Options) []Line {
	lines := []Line{{{pad("IN THE LATEST WINDOW", 22) + padLeft("AMOUNT", 14), Title}, {"  QUALITY", Title}}}
	figures := r.Figures()
	for _, w := range []struct {
		name  string
		field live.Field
		write func(float64) string
	}{{"CPU", live.CPU, func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) + " cores" }}, {"memory", live.Memory, unit.Bytes},
		{"power", live.Power, unit.Watts}, {"disk read", live.DiskRead, rate}, {"disk written", live.DiskWritten, rate}, {"network received", live.NetworkRx, rate},
		{"network sent", live.NetworkTx, rate}, {"tasks", live.PIDs, unit.Number}, {"pressure on CPU", live.PressureCPU, percent},
		{"pressure on memory", live.PressureMemory, percent}, {"pressure on I/O", live.PressureIO, percent}} {
		f := figures[w.field]
		if f.Quality == usage.Absent {
			lines = append(lines, Line{{pad(w.name, 22) + padLeft(glyphsOf(o).absent, 14) + "  absent", Dim}})
			continue
		}
		text := w.write(f.Value)
		if w.field == live.Power {
			text += errorText(r.PowerError, unit.Watts, o)
		}
		lines = append(lines, Line{{pad(w.name, 22), Plain}, {padLeft(text, 14), Strong}, {"  " + f.Quality.String(), Plain}})
	}
	if r.Group != "" {
		return []Line{{{strings.ToUpper(r.Group[:1]) + r.Group[1:] + "s have nothing of their own; their rows show what is used in them.", Dim}}}
	}
	return lines
}
