package unit

import (
	"math"
	"strconv"
	"time"
)

// Bytes formats a size or traffic in binary steps: "512 B", "1.50 MiB".
func Bytes(v float64) string {
	return scaled(v, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

// Number formats a count in decimal steps: "950", "1.20 k".
func Number(v float64) string {
	return scaled(v, 1000, []string{"", "k", "M", "G", "T", "P", "E"})
}

// Joules formats an energy in decimal steps: "950 uJ", "1.20 kJ".
func Joules(v float64) string { return formatSI(v, "J") }

// JoulesPerWh is a watt-hour in joules.
const JoulesPerWh = 3600

// WattHours formats an energy in decimal steps of watt-hours: "12.0 mWh", "1.20 kWh".
func WattHours(v float64) string { return formatSI(v, "Wh") }

// Watts formats a power in decimal steps: "12.0 mW", "57.2 W".
func Watts(v float64) string { return formatSI(v, "W") }

// formatSI formats an amount with three significant digits and a prefix from micro on.
func formatSI(v float64, unit string) string {
	if v == 0 {
		return "0 " + unit
	}
	v *= 1e6
	names := []string{"u", "m", "", "k", "M", "G", "T"}
	n := 0
	for math.Abs(v) >= 999.5 && n < len(names)-1 {
		v /= 1000
		n++
	}
	return threeDigits(v) + " " + names[n] + unit
}

func scaled(v, step float64, names []string) string {
	n := 0
	for math.Abs(v) >= step*0.9995 && n < len(names)-1 {
		v /= step
		n++
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	if n > 0 {
		s = threeDigits(v)
	}
	if names[n] == "" {
		return s
	}
	return s + " " + names[n]
}

// threeDigits formats v with three significant digits.
func threeDigits(v float64) string {
	d := 2
	for a := math.Abs(v); a >= 9.995 && d > 0; a /= 10 {
		d--
	}
	return strconv.FormatFloat(v, 'f', d, 64)
}

// Seconds formats a duration: "0.8 ms", "12.34 s", "1h02m".
func Seconds(d time.Duration) string {
	s := d.Seconds()
	switch a := math.Abs(s); {
	case a == 0:
		return "0 s"
	case a < 0.9995e-3:
		return threeDigits(s*1e6) + " us"
	case a < 0.9995:
		return threeDigits(s*1e3) + " ms"
	case a < 600:
		return strconv.FormatFloat(s, 'f', 3, 64) + " s"
	}
	return d.Round(time.Second).String()
}
