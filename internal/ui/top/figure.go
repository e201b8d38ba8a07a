package top

import (
	"math"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
)

// A Field is a figure that a row shows.
type Field uint8

const (
	CPU            Field = iota // cores
	Memory                      // bytes
	DiskRead                    // bytes per second
	DiskWritten                 // bytes per second
	NetworkRx                   // bytes per second
	NetworkTx                   // bytes per second
	PIDs                        // tasks
	Power                       // watts
	PressureCPU                 // share of the time, 0 to 1
	PressureMemory              // share of the time, 0 to 1
	PressureIO                  // share of the time, 0 to 1

	fields = 11
)

// fieldNames are the keys of a row's Quality.
var fieldNames = [fields]string{
	CPU: usage.CPU.String(), Memory: usage.Memory.String(), DiskRead: usage.DiskRead.String(),
	DiskWritten: usage.DiskWritten.String(), NetworkRx: usage.NetworkRx.String(), NetworkTx: usage.NetworkTx.String(),
	PIDs: usage.PIDs.String(), Power: live.Power, PressureCPU: usage.PressureCPU.String(),
	PressureMemory: usage.PressureMemory.String(), PressureIO: usage.PressureIO.String(),
}

// adds reports whether the field of several workloads has a sum.
func (f Field) adds() bool { return f < PressureCPU }

// A Figure is an amount and how it came about. Where the quality is
// [usage.Absent] there is no amount.
type Figure struct {
	Value   float64
	Quality usage.Quality
}

// plus adds; what is absent adds nothing, and the worse quality wins.
func (a Figure) plus(b Figure) Figure {
	switch {
	case b.Quality == usage.Absent:
		return a
	case a.Quality == usage.Absent:
		return b
	}
	return Figure{a.Value + b.Value, max(a.Quality, b.Quality)}
}

// Figures are the figures of one row.
type Figures [fields]Figure

// plus adds what can be added: nobody's pressure is the sum of two others'.
func (a Figures) plus(b *Figures) Figures {
	for f := range Field(fields) {
		if f.adds() {
			a[f] = a[f].plus(b[f])
		}
	}
	return a
}

// busy reports whether the workload used anything in the tick that a screen
// can show.
func (a *Figures) busy() bool {
	return a[CPU].Value >= 0.0005 || a[DiskRead].Value > 0 || a[DiskWritten].Value > 0 ||
		a[NetworkRx].Value > 0 || a[NetworkTx].Value > 0
}

// figuresOf reads the figures of a row of the machine.
func figuresOf(r *live.Row) (out Figures) {
	put := func(f Field, v float64) {
		q := usage.Measured
		if got := r.Quality[fieldNames[f]]; got != usage.Absent {
			q = got
		}
		out[f] = Figure{v, q}
	}
	rate := func(f Field, p *float64) {
		if p != nil {
			put(f, *p)
		}
	}
	level := func(f Field, p *int64) {
		if p != nil {
			put(f, float64(*p))
		}
	}
	rate(CPU, r.CPU)
	level(Memory, r.Memory)
	rate(DiskRead, r.DiskRead)
	rate(DiskWritten, r.DiskWritten)
	rate(NetworkRx, r.NetworkRx)
	rate(NetworkTx, r.NetworkTx)
	level(PIDs, r.PIDs)
	rate(Power, r.Power)
	rate(PressureCPU, r.PressureCPU)
	rate(PressureMemory, r.PressureMemory)
	rate(PressureIO, r.PressureIO)
	return out
}

// worst returns the highest pressure and the letter of what it is for.
func (a *Figures) worst() (Figure, string) {
	best, letter := a[PressureCPU], "c"
	for f, l := range []string{PressureMemory: "m", PressureIO: "i"} {
		if l != "" && a[f].Quality != usage.Absent && (best.Quality == usage.Absent || a[f].Value > best.Value) {
			best, letter = a[f], l
		}
	}
	return best, letter
}

// Mark is what stands before a figure of that quality: nothing where it was
// measured, "~" where a total was apportioned, "≈" where it was modelled.
func Mark(q usage.Quality, ascii bool) string {
	switch {
	case q == usage.Apportioned:
		return "~"
	case q == usage.Modelled && ascii:
		return "="
	case q == usage.Modelled:
		return "≈"
	}
	return ""
}

// cores writes CPUs in use, or percent of one.
func cores(v float64, percent bool) string {
	if percent {
		return digits(v*100, 1)
	}
	return digits(v, 3)
}

// digits writes v with at most d decimals in at most five characters, so far as
// it fits; zero is "0", so that it differs from what is merely small.
func digits(v float64, d int) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case v == 0:
		return "0"
	case a >= 1e6:
		return strconv.FormatFloat(v, 'e', 0, 64)
	case a >= 1000:
		d = 0
	case a >= 100:
		d = min(d, 1)
	case a >= 10:
		d = min(d, 2)
	}
	return strconv.FormatFloat(v, 'f', d, 64)
}

// watts writes a power in at most six characters: "0.012W", "57.2W".
func watts(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a < 0.9995:
		return digits(v, 3) + "W"
	case a < 9.995:
		return digits(v, 2) + "W"
	case a < 99.95:
		return digits(v, 1) + "W"
	}
	return digits(v, 0) + "W"
}

// size writes bytes in at most six characters: "512B", "1.50Mi".
func size(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "?"
	}
	names := []string{"B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	n := 0
	for math.Abs(v) >= 999.5 && n < len(names)-1 {
		v /= 1024
		n++
	}
	if n == 0 {
		if s := strconv.FormatFloat(v, 'f', 0, 64); s != "0" && s != "-0" {
			return s + "B"
		}
		return "0"
	}
	s := strconv.FormatFloat(v, 'f', 2, 64)
	if len(s) > 4 { // three digits and a point
		s = strings.TrimSuffix(s[:4], ".")
	}
	return s + names[n]
}

// percent writes a share of the time.
func percent(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case v == 0:
		return "0"
	case v < 0.0995:
		return strconv.FormatFloat(v*100, 'f', 1, 64) + "%"
	}
	return strconv.FormatFloat(v*100, 'f', 0, 64) + "%"
}
