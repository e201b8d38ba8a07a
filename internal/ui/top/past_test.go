package top_test

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/ui/top"
)

// readings makes measured figures; a negative one is absent.
func readings(values ...float64) (out []live.Figure) {
	for _, v := range values {
		f := live.Figure{Value: v, Quality: usage.Measured}
		if v < 0 {
			f = live.Figure{}
		}
		out = append(out, f)
	}
	return out
}

func TestSparkline(t *testing.T) {
	ramp := []float64{0, 1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		name   string
		values []float64
		first  int
		whole  float64
		width  int
		ascii  bool
		want   string
	}{
		{"steps", ramp, 0, 0, top.Kept, false, "▁▂▃▄▅▆▇█"},
		{"steps in ASCII", ramp, 0, 0, top.Kept, true, "_.:-=+*#"},
		{"an absent one is a gap, zero is not", []float64{7, -1, 0, -1}, 0, 0, top.Kept, false, "█ ▁ "},
		{"all zero", []float64{0, 0}, 0, 0, top.Kept, false, "▁▁"},
		{"all absent", []float64{-1, -1}, 0, 8, top.Kept, false, "  "},
		{"scale of the whole", []float64{7, 3}, 0, 14, top.Kept, false, "▅▃"},
		{"more than the whole", []float64{14, 7}, 0, 7, top.Kept, false, "█▅"},
		{"two in a cell show the larger", ramp, 0, 0, 61, false, "▂▄▆█"},
		{"cells begin at even numbers", ramp, 1, 0, 61, false, "▁▃▅▇█"},
		{"a gap in a cell of two", []float64{7, -1, 7, 7}, 0, 0, 61, false, " █"},
		{"no room", ramp, 0, 0, 1, false, ""},
	} {
		if got := top.Sparkline(readings(c.values...), c.first, c.whole, c.width, top.Options{ASCII: c.ascii}); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A sparkline fits for any figures, and cells that have all their readings stay the same when the next
// reading comes.
func TestSparklineMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := readings(rapid.SliceOfN(rapid.Float64Range(-1, 8), top.Kept+1, top.Kept+1).Draw(t, "values")...)
		first := rapid.IntRange(0, 1000).Draw(t, "first")
		width := rapid.IntRange(2, 200).Draw(t, "width")
		before := []rune(top.Sparkline(all[:top.Kept], first, 8, width, top.Options{}))
		after := top.Sparkline(all[1:], first+1, 8, width, top.Options{})
		if n := utf8.RuneCountInString(after); len(before) > width || n > width {
			t.Fatalf("%d and %d cells on a width of %d", len(before), n, width)
		}
		// The oldest cell loses a reading, the newest gets one.
		if same := string(before[1:max(1, len(before)-1)]); !strings.Contains(after, same) {
			t.Fatalf("cells change:\n%q\n%q", string(before), after)
		}
	})
}

// No figure is too large for a sparkline.
func TestSparklineOfAnything(t *testing.T) {
	odd := rapid.SampledFrom([]float64{-1, 0, math.NaN(), math.Inf(1), math.MaxFloat64, math.SmallestNonzeroFloat64})
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(odd, 0, 5).Draw(t, "values")
		if got := top.Sparkline(readings(values...), 0, odd.Draw(t, "whole"), 200, top.Options{}); utf8.RuneCountInString(got) != len(values) {
			t.Errorf("%q", got)
		}
	})
}

// The line of the machine's past fits any screen, and says the scale, the largest value and the
// length.
func TestPastCPU(t *testing.T) {
	m := toptest.Machine(0)
	p := &top.Past{CPU: readings(4, -1, 0, 2), Length: 4 * time.Second}
	for _, c := range []struct {
		width int
		opt   top.Options
		want  string
	}{
		{0, top.Options{}, "Past CPU ▅ ▁▃  at most 4.00 of 8.00 in 4s"},
		{200, top.Options{Percent: true}, "Past CPU ▅ ▁▃  at most 400.0% of 800.0% in 4s"},
		{80, top.Options{ASCII: true}, "Past CPU  :  at most 4.00 of 8.00 in 4s"},
		{20, top.Options{}, "Past CPU   at most …"},
	} {
		if got := top.PastCPU(m, p, c.width, c.opt).String(); got != c.want {
			t.Errorf("width %d: %q, want %q", c.width, got, c.want)
		}
	}
	p = &top.Past{CPU: readings(-1), Length: 2*time.Minute + 40*time.Millisecond}
	if got := top.PastCPU(m, p, 0, top.Options{}).String(); got != "Past CPU    at most – of 8.00 in 2m0s" {
		t.Errorf("%q, want no figure", got)
	}
}

// Details have the past of a workload between its properties and its use.
func TestPastInDetails(t *testing.T) {
	m := toptest.Machine(3)
	p := &top.Past{CPU: readings(0.125, -1, 0.5), Memory: readings(1<<20, -1, 2<<20), Length: 3 * time.Second}
	p.CPU[2].Quality = usage.Apportioned
	lines := func(r live.Row, width int, o top.Options) string {
		var b strings.Builder
		for _, l := range top.Details(m, &r, p, width, o) {
			if s := l.String(); strings.HasPrefix(s, "PAST") || strings.HasPrefix(s, "cpu  ") || strings.HasPrefix(s, "memory  ") {
				b.WriteString(s + "\n")
			}
			if strings.HasPrefix(l.String(), "SINCE") {
				break
			}
		}
		return b.String()
	}
	row := m.Rows[3]
	want := "PAST       AT MOST IN THE LAST 3s\ncpu   ~0.500 cores ▃ █\nmemory    2.00 MiB ▅ █\n"
	if got := lines(row, 140, top.Options{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	p.Memory = readings(-1, -1, -1)
	row.Group = live.Node
	want = "PAST       AT MOST IN THE LAST 3s, WITH ALL BELOW\ncpu         ~50.0% : #\nmemory           -\n"
	if got := lines(row, 140, top.Options{ASCII: true, Percent: true}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for width := 1; width < 200; width++ {
		for _, l := range top.Details(m, &row, p, width, top.Options{}) {
			if l.Width() > width {
				t.Errorf("line of %d cells on a screen of %d: %q", l.Width(), width, l)
			}
		}
	}
}

// The figures of a machine of a fleet are those of its row in the table; a machine that is not
// heard has none.
func TestUses(t *testing.T) {
	m, err := ask(t, "", three()...)
	if err != nil {
		t.Fatal(err)
	}
	uses := top.Uses(m)
	for _, r := range top.Arrange(m, top.Options{}).Rows {
		for i := range m.Rows {
			if m.Rows[i].ID == r.Row.ID && uses[i] != r.Figures {
				t.Errorf("%s uses %v, the table shows %v", r.Label, uses[i], r.Figures)
			}
		}
	}
	for i := range m.Rows {
		cpu := uses[i][live.CPU]
		switch m.Rows[i].Name {
		case "web-1":
			if cpu.Value != 0.75 || cpu.Quality != usage.Measured {
				t.Errorf("web-1 uses %v, want 0.75 CPUs, without the unused ones", cpu)
			}
		case "db-1":
			if cpu.Quality != usage.Absent {
				t.Errorf("db-1, which is silent, uses %v", cpu)
			}
		}
	}
	one := toptest.Machine(0)
	for i, f := range top.Uses(one) {
		if f != one.Rows[i].Figures() {
			t.Errorf("%s uses %v", one.Rows[i].Name, f)
		}
	}
}
