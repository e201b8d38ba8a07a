package ledger

import "slices"

// A stretch is a part of a range, [from, to) in minutes, and how it is read.
type stretch struct {
	level
	from, to int64
}

// units is how many minutes, hours or days it has.
func (p stretch) units() int64 { return (p.to - p.from) / p.level.width() }

// table is where the rows of the stretch are.
func (p stretch) table(s *shape) string {
	switch p.level {
	case days:
		return s.dayTable()
	case hours:
		return s.hourTable()
	}
	return s.minuteTable(p.from - p.from%dayMinutes)
}

// widen moves the ends of a range outward to where rows are kept that fine:
// beyond the minutes that are kept to whole hours, beyond the hours to days.
func (m marks) widen(from, to int64) (int64, int64) {
	down, up := func(v, w int64) int64 { return v - v%w }, func(v, w int64) int64 { return v + (w-v%w)%w }
	switch {
	case from < m.HourFloor:
		from = down(from, dayMinutes)
	case from < m.MinuteFloor:
		from = down(from, hourMinutes)
	}
	switch {
	case to <= m.HourFloor:
		to = up(to, dayMinutes)
	case to <= m.MinuteFloor:
		to = up(to, hourMinutes)
	}
	return from, to
}

// stretches covers a widened range by the coarsest rows that fit: whole days that
// are folded, then whole hours, then minutes. kept are the days that have
// minutes. What is folded is in the coarser rows and in the finer ones alike, so
// that each part of the range is read once, wherever the cuts are.
func (m marks) stretches(from, to int64, kept []int64) (out []stretch) {
	if from >= to {
		return nil
	}
	hour0, hour1 := cut(from, min(to, m.Hour), hourMinutes)
	day0, day1 := cut(from, min(to, m.Day), dayMinutes)
	if day0 < day1 {
		out = append(out, stretch{days, day0, day1})
	} else {
		day0, day1 = hour0, hour0
	}
	if hour0 >= hour1 {
		return append(out, minutesOf(from, to, kept)...)
	}
	// Days are of folded hours only, so they lie within the whole hours.
	for _, s := range []stretch{{hours, hour0, day0}, {hours, day1, hour1}} {
		if s.from < s.to {
			out = append(out, s)
		}
	}
	out = append(out, minutesOf(from, hour0, kept)...)
	return append(out, minutesOf(hour1, to, kept)...)
}

// cut is the part of [from, to) that is of whole units.
func cut(from, to, unit int64) (int64, int64) {
	return from + (unit-from%unit)%unit, to - to%unit
}

// minutesOf covers [from, to) by the minutes of the days that have any.
func minutesOf(from, to int64, kept []int64) (out []stretch) {
	i, _ := slices.BinarySearch(kept, from-from%dayMinutes)
	for _, day := range kept[i:] {
		if a, b := max(from, day), min(to, day+dayMinutes); a < b {
			out = append(out, stretch{minutes, a, b})
		}
	}
	return out
}
