package top

import (
	"math"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
)

// busyMemory is the part of a machine's memory that makes a workload busy which uses nothing else.
const busyMemory = 0.01

// IsBusy reports whether a workload with these figures used CPU, disk or network in the tick, as far
// as a screen can show it, or holds a hundredth of the machine's memory.
func IsBusy(m *live.Machine, a *live.Figures) bool {
	return a[live.Memory].Value > 0 && a[live.Memory].Value >= busyMemory*float64(m.Memory.Whole) || a[live.CPU].Value >= 0.0005 || a[live.DiskRead].Value > 0 || a[live.DiskWritten].Value > 0 ||
		a[live.NetworkRx].Value > 0 || a[live.NetworkTx].Value > 0
}

// worst returns the highest pressure and the letter of its resource.
func worst(a *live.Figures) (live.Figure, string) {
	best, letter := a[live.PressureCPU], "c"
	for f, l := range []string{live.PressureMemory: "m", live.PressureIO: "i"} {
		if l != "" && a[f].Quality != usage.Absent && (best.Quality == usage.Absent || a[f].Value > best.Value) {
			best, letter = a[f], l
		}
	}
	return best, letter
}

// Mark returns the mark before a figure of that quality: "" if measured, "~" if
// apportioned, "≈" if modelled.
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

// cores formats CPUs in use, or percent of one.
func cores(v float64, percent bool) string {
	if percent {
		return digits(v*100, 1)
	}
	return digits(v, 3)
}

// digits formats v with at most d decimals in at most five characters if possible; zero is
// "0", so that it differs from a small value.
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

// watts formats a power in at most six characters: "0.012W", "57.2W".
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

// size formats bytes in at most six characters: "512B", "1.50Mi".
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

// percent formats a share of the time.
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
