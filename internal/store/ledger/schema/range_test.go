package schema

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/replica"
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

// Where rows are dropped, a range begins and ends with the rows that are left.
func TestWiden(t *testing.T) {
	m := Marks{HourFloor: 2 * DayMinutes, MinuteFloor: 3 * DayMinutes}
	for _, c := range [][4]int64{
		{1, 2, 0, 1440}, {1439, 1441, 0, 2880}, {2879, 2880, 1440, 2880}, {2880, 2881, 2880, 2940}, {2939, 2940, 2880, 2940},
		{4319, 4320, 4260, 4320}, {4320, 4321, 4320, 4321}, {4321, 4999, 4321, 4999}, {1440, 4320, 1440, 4320},
	} {
		if from, to := m.Widen(c[0], c[1]); from != c[2] || to != c[3] {
			t.Errorf("[%d, %d) becomes [%d, %d), want [%d, %d)", c[0], c[1], from, to, c[2], c[3])
		}
	}
}

// A range is read in as few parts as possible.
func TestCover(t *testing.T) {
	kept := []int64{0, DayMinutes, 2 * DayMinutes}
	for _, c := range []struct {
		m        Marks
		from, to int64
		want     string
	}{
		{Marks{Hour: 600}, 290, 310, "[{0 290 310}]"},
		{Marks{Hour: 600}, 300, 330, "[{0 300 330}]"},
		{Marks{Hour: 600}, 290, 365, "[{1 300 360} {0 290 300} {0 360 365}]"},
		{Marks{Hour: 600}, 290, 660, "[{1 300 600} {0 290 300} {0 600 660}]"},
		{Marks{Hour: 4320, Day: 4320}, 1380, 2940, "[{2 1440 2880} {1 1380 1440} {1 2880 2940}]"},
		{Marks{}, 1430, 2890, "[{0 1430 1440} {0 1440 2880} {0 2880 2890}]"},
		{Marks{Hour: 600}, 300, 300, "[]"},
		{Marks{Hour: 600}, 330, 290, "[]"},
	} {
		if got := fmt.Sprint(c.m.Cover(c.from, c.to, kept)); got != c.want {
			t.Errorf("%+v: [%d, %d) is read as %s, want %s", c.m, c.from, c.to, got, c.want)
		}
	}
}

// A server below can send each minute that can be stored, and no other.
func TestEndMinute(t *testing.T) {
	for minute, want := range map[int64]bool{EndMinute - 1: true, EndMinute: false} {
		p := replica.Page{Nodes: []replica.Node{{}}, NodeRows: []replica.NodeRow{{}}}
		p.Nodes[0].ID, p.NodeRows[0].Minute = "a", minute
		if err := p.Check(); (err == nil) != want {
			t.Errorf("minute %d: %v", minute, err)
		}
	}
}
