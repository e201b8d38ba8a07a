package schema

// A Range is a span of time, [From, To) in minutes, and the level of the rows to read for it.
type Range struct {
	Level
	From, To int64
}

// DayOf returns the first minute of a minute's day.
func DayOf(minute int64) int64 { return minute - minute%DayMinutes }

// Len returns the number of minutes, hours or days.
func (r Range) Len() int64 { return (r.To - r.From) / r.Level.Width() }

// Table returns the table of the range.
func (r Range) Table(s *Layout) string {
	switch r.Level {
	case Days:
		return s.DayTable()
	case Hours:
		return s.HourTable()
	}
	return s.MinuteTable(DayOf(r.From))
}

// Widen moves the ends of a range outward to boundaries of kept rows: to whole hours where minutes
// are dropped, to whole days where hours are.
func (m Marks) Widen(from, to int64) (int64, int64) {
	width := func(minute int64) int64 {
		switch {
		case minute < m.HourFloor:
			return DayMinutes
		case minute < m.MinuteFloor:
			return HourMinutes
		}
		return 1
	}
	first, last := width(from), width(to-1)
	return from - from%first, to + (last-to%last)%last
}

// Cover covers a widened range with the coarsest rows that fit: whole folded days, then whole
// hours, then minutes. kept are the days that have minutes. Folded rows are in both the coarser and
// the finer tables, so each part of the range is read exactly once.
func (m Marks) Cover(from, to int64, kept []int64) (out []Range) {
	hour0, hour1 := wholeUnits(from, min(to, m.Hour), HourMinutes)
	day0, day1 := wholeUnits(from, min(to, m.Day), DayMinutes)
	if day0 < day1 {
		out = append(out, Range{Days, day0, day1})
	} else {
		day0, day1 = hour0, hour0
	}
	if hour0 >= hour1 {
		return append(out, CoverMinutes(from, to, kept)...)
	}
	// Days consist of folded hours only, so they lie within the whole hours.
	for _, s := range []Range{{Hours, hour0, day0}, {Hours, day1, hour1}} {
		if s.From < s.To {
			out = append(out, s)
		}
	}
	out = append(out, CoverMinutes(from, hour0, kept)...)
	return append(out, CoverMinutes(hour1, to, kept)...)
}

// wholeUnits returns the part of [from, to) that consists of whole units.
func wholeUnits(from, to, unit int64) (int64, int64) {
	return from + (unit-from%unit)%unit, to - to%unit
}

// CoverMinutes covers [from, to) with the minutes of the days that have any.
func CoverMinutes(from, to int64, kept []int64) (out []Range) {
	for _, day := range kept {
		if a, b := max(from, day), min(to, day+DayMinutes); a < b {
			out = append(out, Range{Minutes, a, b})
		}
	}
	return out
}

// A MinuteSpan is a first and a last minute; the zero value is empty.
type MinuteSpan struct{ First, Last int64 }

func (s MinuteSpan) Extend(minute int64) MinuteSpan {
	if s == (MinuteSpan{}) {
		return MinuteSpan{minute, minute}
	}
	return MinuteSpan{min(s.First, minute), max(s.Last, minute)}
}

// A Bucket is the rows of one minute, hour or day.
type Bucket struct {
	Level Level
	Start int64
}

// Split splits a range into ranges of one row each.
func (r Range) Split() (out []Range) {
	for at := r.From; at < r.To; at += r.Level.Width() {
		out = append(out, Range{r.Level, at, at + r.Level.Width()})
	}
	return out
}
