package top

import (
	"strings"
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Kept is the greatest number of readings in a [Past]: two minutes of them at one a second.
const Kept = 120

// A Past is what a workload or the machine used in the last readings, oldest first. A figure
// that a reading lacks is absent, and so are those of a reading that failed.
type Past struct {
	CPU, Memory []live.Figure
	First       int           // number of the oldest reading, counted from the first of all
	Length      time.Duration // time that the readings cover
}

// Sparkline draws figures in at most width cells, from zero to the height of whole, or of the
// largest if that is more. An absent figure is a gap. If [Kept] figures need more cells, each
// cell has several and shows the largest; it is a gap if one of them is absent. first is the
// number of the first figure: cells begin at numbers that do not change from reading to reading.
func Sparkline(figures []live.Figure, first int, whole float64, width int, o Options) string {
	if width < 2 {
		return ""
	}
	per := 1
	for (Kept+per-2)/per+1 > width {
		per++
	}
	whole = max(whole, largest(figures).Value)
	steps := glyphsOf(o).steps
	var b strings.Builder
	for i := 0; i < len(figures); {
		n := min(per-(first+i)%per, len(figures)-i)
		b.WriteRune(step(figures[i:i+n], whole, steps))
		i += n
	}
	return b.String()
}

// step returns the character of one cell.
func step(figures []live.Figure, whole float64, steps []rune) rune {
	v := 0.0
	for _, f := range figures {
		if f.Quality == usage.Absent {
			return ' '
		}
		v = max(v, f.Value)
	}
	switch share := v / whole; {
	case !(v > 0):
		return steps[0]
	case share < 1:
		return steps[int(share*float64(len(steps)-1)+0.5)]
	}
	return steps[len(steps)-1]
}

// largest returns the largest figure; it is absent if all are.
func largest(figures []live.Figure) (most live.Figure) {
	for _, f := range figures {
		if f.Quality != usage.Absent && (most.Quality == usage.Absent || f.Value > most.Value) {
			most = f
		}
	}
	return most
}

// PastCPU returns the line of the machine's used CPU in the last readings, on a scale of all its
// CPUs.
func PastCPU(m *live.Machine, p *Past, width int, o Options) Line {
	n := func(v float64) string {
		if o.Percent && m.Fleet == nil {
			return digits(v*100, 1) + "%"
		}
		return digits(v, 2)
	}
	most := glyphsOf(o).absent
	if f := largest(p.CPU); f.Quality != usage.Absent {
		most = n(f.Value)
	}
	text := Line{{"  at most ", Dim}, {most, Strong}, {" of " + n(m.CPU.Whole) + " in " + short(p.Length), Plain}}
	title := Line{{"Past CPU ", Title}}
	cells := Kept
	if width > 0 {
		cells = width - title.Width() - text.Width()
	}
	line := append(append(title, Span{Sparkline(p.CPU, p.First, m.CPU.Whole, cells, o), Work}), text...)
	return line.Fit(widthOr(width, line), o.ASCII)
}

// past returns the lines of what a workload used in the last readings; nil if none are known.
func past(r *live.Row, p *Past, width int, o Options) []Line {
	if p == nil || len(p.CPU) == 0 {
		return nil
	}
	const name, amount = 6, 12
	line := func(label string, figures []live.Figure, write func(float64) string) Line {
		f := largest(figures)
		if f.Quality == usage.Absent {
			return Line{{pad(label, name), Plain}, {padLeft(glyphsOf(o).absent, amount), Dim}}
		}
		cells := Kept
		if width > 0 {
			cells = width - name - amount - 1
		}
		return Line{{pad(label, name), Plain}, {padLeft(Mark(f.Quality, o.ASCII)+write(f.Value), amount), Strong},
			{" ", Plain}, {Sparkline(figures, p.First, 0, cells, o), Work}}
	}
	cpu := func(v float64) string {
		if o.Percent {
			return cores(v, true) + "%"
		}
		return cores(v, false) + " cores"
	}
	title := pad("PAST", name) + padLeft("AT MOST", amount) + " IN THE LAST " + short(p.Length)
	if r.Group != "" {
		title += ", WITH ALL BELOW"
	}
	return []Line{
		{{title, Title}},
		line("cpu", p.CPU, cpu),
		line("memory", p.Memory, unit.Bytes),
		nil,
	}
}

// short formats a length of time: "2m0s", "1.2s".
func short(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
