package ledger

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestStretches: whatever is folded and kept, stretches cover the widened range
// exactly once, each by rows that are there. What is not covered are minutes of
// days without any, past what is folded.
func TestStretches(t *testing.T) {
	const days0 = 12
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.Int64Range(0, days0*dayMinutes)
		draw := func(from, to, unit int64, what string) int64 {
			return unit * rapid.Int64Range(from/unit, to/unit).Draw(t, what)
		}
		var m marks
		m.Hour = draw(0, days0*dayMinutes, hourMinutes, "hour mark")
		m.Day = draw(0, m.Hour, dayMinutes, "day mark")
		m.HourFloor = draw(0, m.Day, dayMinutes, "hour floor")
		m.MinuteFloor = draw(0, m.Hour, dayMinutes, "minute floor")
		var kept []int64
		for day := m.MinuteFloor; day < days0*dayMinutes; day += dayMinutes {
			if rapid.Bool().Draw(t, "kept") {
				kept = append(kept, day)
			}
		}
		a, b := minute.Draw(t, "from"), minute.Draw(t, "to")
		if a > b {
			a, b = b, a
		}
		from, to := m.widen(a, b)
		// How fine there are rows at the first and at the last minute.
		fine := func(at int64) int64 {
			switch {
			case at >= max(m.MinuteFloor, m.HourFloor):
				return 1
			case at >= m.HourFloor:
				return hourMinutes
			}
			return dayMinutes
		}
		if f := fine(a); from != a-a%f {
			t.Fatalf("%d widened to %d, where rows are of %d minutes", a, from, f)
		}
		if f := fine(max(b-1, 0)); to != (b+f-1)/f*f {
			t.Fatalf("up to %d widened to %d, where rows are of %d minutes", b, to, f)
		}
		covered := make([]int, to-from)
		for _, p := range m.stretches(from, to, kept) {
			w := p.level.width()
			if p.from >= p.to || p.from < from || p.to > to || p.from%w != 0 || p.to%w != 0 {
				t.Fatalf("stretch %+v of [%d, %d)", p, from, to)
			}
			day := p.from - p.from%dayMinutes
			switch p.level {
			case days:
				if p.to > m.Day {
					t.Fatalf("days %+v are not folded up to %d", p, m.Day)
				}
			case hours:
				if p.from < m.HourFloor || p.to > m.Hour {
					t.Fatalf("hours %+v are not in [%d, %d)", p, m.HourFloor, m.Hour)
				}
			case minutes:
				if !slices.Contains(kept, day) || p.to > day+dayMinutes {
					t.Fatalf("minutes %+v are not of one of the days %v", p, kept)
				}
			}
			for i := p.from; i < p.to; i++ {
				covered[i-from]++
			}
		}
		for i, n := range covered {
			at := from + int64(i)
			none := at >= max(m.MinuteFloor, m.HourFloor) && !slices.Contains(kept, at-at%dayMinutes)
			if n > 1 || n == 0 && !none {
				t.Fatalf("minute %d of [%d, %d) is covered %d times", at, from, to, n)
			}
		}
	})
}
