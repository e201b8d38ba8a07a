package schema

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRanges checks that ranges cover the widened range exactly once with rows that are kept,
// whatever is folded. Only unfolded minutes of days without a table may be missing.
func TestRanges(t *testing.T) {
	const days0 = 12
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.Int64Range(0, days0*DayMinutes)
		draw := func(from, to, unit int64, what string) int64 {
			return unit * rapid.Int64Range(from/unit, to/unit).Draw(t, what)
		}
		var m Marks
		m.Hour = draw(0, days0*DayMinutes, HourMinutes, "hour mark")
		m.Day = draw(0, m.Hour, DayMinutes, "day mark")
		m.HourFloor = draw(0, m.Day, DayMinutes, "hour floor")
		m.MinuteFloor = draw(0, m.Hour, DayMinutes, "minute floor")
		var kept []int64
		for day := m.MinuteFloor; day < days0*DayMinutes; day += DayMinutes {
			if rapid.Bool().Draw(t, "kept") {
				kept = append(kept, day)
			}
		}
		a, b := minute.Draw(t, "from"), minute.Draw(t, "to")
		if a > b {
			a, b = b, a
		}
		from, to := m.Widen(a, b)
		// fine returns the width of the finest kept rows at a minute.
		fine := func(at int64) int64 {
			switch {
			case at >= max(m.MinuteFloor, m.HourFloor):
				return 1
			case at >= m.HourFloor:
				return HourMinutes
			}
			return DayMinutes
		}
		if f := fine(a); from != a-a%f {
			t.Fatalf("%d widened to %d, want a multiple of %d minutes", a, from, f)
		}
		if f := fine(max(b-1, 0)); to != (b+f-1)/f*f {
			t.Fatalf("up to %d widened to %d, want a multiple of %d minutes", b, to, f)
		}
		covered := make([]int, to-from)
		for _, p := range m.Cover(from, to, kept) {
			w := p.Level.Width()
			if p.From >= p.To || p.From < from || p.To > to || p.From%w != 0 || p.To%w != 0 {
				t.Fatalf("range %+v of [%d, %d)", p, from, to)
			}
			day := p.From - p.From%DayMinutes
			switch p.Level {
			case Days:
				if p.To > m.Day {
					t.Fatalf("days %+v are not folded up to %d", p, m.Day)
				}
			case Hours:
				if p.From < m.HourFloor || p.To > m.Hour {
					t.Fatalf("hours %+v are not in [%d, %d)", p, m.HourFloor, m.Hour)
				}
			case Minutes:
				if !slices.Contains(kept, day) || p.To > day+DayMinutes {
					t.Fatalf("minutes %+v are not within one of the days %v", p, kept)
				}
			}
			for i := p.From; i < p.To; i++ {
				covered[i-from]++
			}
		}
		for i, n := range covered {
			at := from + int64(i)
			none := at >= max(m.MinuteFloor, m.HourFloor) && !slices.Contains(kept, at-at%DayMinutes)
			if n > 1 || n == 0 && !none {
				t.Fatalf("minute %d of [%d, %d) is covered %d times", at, from, to, n)
			}
		}
	})
}
