package chart

import (
	"math"
	"strconv"
	"time"
)

// digits formats a number with at most four significant digits, whole numbers below a
// million in full.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case v == math.Trunc(v) && a < 1e6:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case a >= 1e6 || a < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	// Use as many decimals as make four digits, and drop trailing zeros.
	d := 3 - int(math.Floor(math.Log10(a)))
	w, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', max(0, d), 64), 64)
	if err != nil {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(w, 'f', -1, 64)
}

// tick formats a value beside an axis: without the unit, which is above the axis.
func (u Unit) tick(v float64) string {
	switch u {
	case Cores, PerSecond:
		return digits(v)
	case Seconds:
		return digits(v) + " s"
	}
	return u.Write(v)
}

// maxValue is above every drawn value; sums of values below it are finite.
const maxValue = 1e150

// An axis goes from lo to hi with a tick every step.
type axis struct{ lo, hi, step float64 }

// axisOf returns an axis for values between lo and hi with about n steps. It includes zero
// unless the values are far from it relative to their spread, because a truncated bar would
// mislead.
func axisOf(lo, hi float64, n int, u Unit) axis {
	if lo > 0 && lo < hi*0.75 {
		lo = 0
	} else if hi < 0 && hi > lo*0.75 {
		hi = 0
	}
	// Values that differ by less than rounding errors are equal.
	if hi-lo <= max(1e-9*max(math.Abs(lo), math.Abs(hi)), 1/maxValue) {
		pad := math.Abs(lo) / 2
		if pad <= 1/maxValue {
			pad = 0.5
		}
		if lo >= 0 {
			lo, hi = max(0, lo-pad), hi+pad
		} else {
			lo, hi = lo-pad, min(0, hi+pad)
		}
	}
	a := axis{step: niceStep((hi/float64(n))-(lo/float64(n)), u)}
	a.lo, a.hi = math.Floor(lo/a.step)*a.step, math.Ceil(hi/a.step)*a.step
	return a
}

// niceStep returns a round step of at least v: 1, 2 or 5 times a power of ten, or a power
// of two for bytes.
func niceStep(v float64, u Unit) float64 {
	switch u {
	case Bytes, BytesPerSecond, ByteSeconds:
		scale := 1.0
		if u == ByteSeconds {
			scale = 3600
		}
		if v >= scale {
			return math.Exp2(math.Ceil(math.Log2(v/scale)-1e-9)) * scale
		}
	}
	base := math.Pow(10, math.Floor(math.Log10(v)))
	if base == 0 || math.IsInf(base, 0) || math.IsNaN(base) {
		return v
	}
	for _, f := range []float64{1, 2, 5} {
		if f*base >= v*(1-1e-9) {
			return f * base
		}
	}
	return 10 * base
}

// timeSteps are the round steps of an axis of time.
var timeSteps = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}

const day = 24 * time.Hour

// A timeMark is a labeled instant of an axis of time.
type timeMark struct {
	at   time.Time
	text string
}

// timeMarks returns at most n round instants between two times, in the zone's local time.
func timeMarks(from, to time.Time, n int, zone *time.Location) (list []timeMark) {
	n = max(n, 1)
	length := to.Sub(from)
	step := time.Duration(0)
	for _, s := range timeSteps {
		if length/s < time.Duration(n) {
			step = s
			break
		}
	}
	if step == 0 {
		return dayMarks(from, to, n, zone)
	}
	// Round in local time, whose hours may differ from those of UTC.
	_, offset := from.In(zone).Zone()
	shift := time.Duration(offset) * time.Second
	at := from.Add(shift).Truncate(step).Add(-shift)
	for ; !at.After(to); at = at.Add(step) {
		if at.Before(from) {
			continue
		}
		local := at.In(zone)
		layout := "15:04"
		switch {
		case local.Hour() == 0 && local.Minute() == 0 && local.Second() == 0:
			layout = "Jan 2"
		case step < time.Minute:
			layout = time.TimeOnly
		}
		list = append(list, timeMark{at, local.Format(layout)})
	}
	return list
}

// dayMarks returns midnights at intervals of the given number of days.
func dayMarks(from, to time.Time, n int, zone *time.Location) (list []timeMark) {
	every := int(to.Sub(from)/day)/n + 1
	local := from.In(zone)
	for i := 0; ; i += every {
		at := time.Date(local.Year(), local.Month(), local.Day()+1+i, 0, 0, 0, 0, zone)
		if at.After(to) {
			return list
		}
		layout := "Jan 2"
		if every > 300 {
			layout = "2006"
		}
		list = append(list, timeMark{at, at.Format(layout)})
	}
}
