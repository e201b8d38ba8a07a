package schema

import "slices"

// A Range is a span of time, [From, To) in minutes, and the level of the rows that are
// read for it.
type Range struct {
	Level
	From, To int64
}

// Len is how many minutes, hours or days it has.
func (p Range) Len() int64 { return (p.To - p.From) / p.Level.Width() }

// Table is where the rows of the range are.
func (p Range) Table(s *Layout) string {
	switch p.Level {
	case Days:
		return s.DayTable()
	case Hours:
		return s.HourTable()
	}
	return s.MinuteTable(p.From - p.From%DayMinutes)
}

// Widen moves the ends of a range outward to where rows are kept that fine:
// beyond the minutes that are kept to whole hours, beyond the hours to days.
func (m Marks) Widen(from, to int64) (int64, int64) {
	down, up := func(v, w int64) int64 { return v - v%w }, func(v, w int64) int64 { return v + (w-v%w)%w }
	switch {
	case from < m.HourFloor:
		from = down(from, DayMinutes)
	case from < m.MinuteFloor:
		from = down(from, HourMinutes)
	}
	switch {
	case to <= m.HourFloor:
		to = up(to, DayMinutes)
	case to <= m.MinuteFloor:
		to = up(to, HourMinutes)
	}
	return from, to
}

// Cover covers a widened range by the coarsest rows that fit: whole days that
// are folded, then whole hours, then minutes. kept are the days that have
// minutes. What is folded is in the coarser rows and in the finer ones alike, so
// that each part of the range is read once, wherever the cuts are.
func (m Marks) Cover(from, to int64, kept []int64) (out []Range) {
	if from >= to {
		return nil
	}
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
	// Days are of folded hours only, so they lie within the whole hours.
	for _, s := range []Range{{Hours, hour0, day0}, {Hours, day1, hour1}} {
		if s.From < s.To {
			out = append(out, s)
		}
	}
	out = append(out, CoverMinutes(from, hour0, kept)...)
	return append(out, CoverMinutes(hour1, to, kept)...)
}

// wholeUnits is the part of [from, to) that is of whole units.
func wholeUnits(from, to, unit int64) (int64, int64) {
	return from + (unit-from%unit)%unit, to - to%unit
}

// CoverMinutes covers [from, to) by the minutes of the days that have any.
func CoverMinutes(from, to int64, kept []int64) (out []Range) {
	i, _ := slices.BinarySearch(kept, from-from%DayMinutes)
	for _, day := range kept[i:] {
		if a, b := max(from, day), min(to, day+DayMinutes); a < b {
			out = append(out, Range{Minutes, a, b})
		}
	}
	return out
}

// A MinuteSpan is from a first to a last minute; the zero value is none.
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

// Split are the rows of a chunk, each as a piece.
func (p Range) Split() (out []Range) {
	for at := p.From; at < p.To; at += p.Level.Width() {
		out = append(out, Range{p.Level, at, at + p.Level.Width()})
	}
	return out
}
