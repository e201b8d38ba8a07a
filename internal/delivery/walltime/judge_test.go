package walltime_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

var now = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

const minute = int64(time.Minute)

// drawBoots makes a batch of windows of some boots, with clocks that are right,
// somewhat wrong, or out of this world, and what the sender's clocks show.
func drawBoots(t *rapid.T) (batch.Clock, []usage.Window) {
	c := batch.Clock{Boot: "present", Boottime: rapid.Int64Range(0, int64(500*24*time.Hour)).Draw(t, "boottime")}
	began := now.UnixNano() - c.Boottime
	var ws []usage.Window
	names := []string{"a", "b", "present"}
	for _, boot := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 3, rapid.ID).Draw(t, "boots") {
		right := began
		at := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "at")
		if boot != c.Boot {
			right = began - rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "before") - int64(2*time.Hour)
		}
		wrong := rapid.SampledFrom([]int64{0, minute, -minute, 3 * minute, -3 * minute, 3600e9, -3600e9, int64(800 * 24 * time.Hour), -int64(800 * 24 * time.Hour), int64(200 * 365 * 24 * time.Hour)})
		off := right + wrong.Draw(t, "wrong")
		for range rapid.IntRange(1, 4).Draw(t, "windows") {
			if rapid.IntRange(0, 4).Draw(t, "step") == 0 {
				off = right + wrong.Draw(t, "wrong")
			}
			w := usage.Window{Boot: boot, Start: at, End: at + rapid.Int64Range(0, int64(5*time.Minute)).Draw(t, "length"), Offset: off}
			at = w.End + rapid.Int64Range(0, 30e9).Draw(t, "pause")
			ws = append(ws, w)
		}
	}
	return c, ws
}

type span struct{ start, end time.Time }

func spans(ws []usage.Window, by []time.Duration) []span {
	s := make([]span, len(ws))
	for i := range ws {
		s[i] = span{walltime.Start(&ws[i], by[i]), walltime.End(&ws[i], by[i])}
	}
	return s
}

func overlap(a, b span) bool { return a.start.Before(b.end) && b.start.Before(a.end) }

// TestJudge checks the properties that hold for every batch, whatever its clocks show.
func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, ws := drawBoots(t)
		by, err := walltime.Judge(now, c, ws, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := now.UnixNano() - c.Boottime
		before, after := spans(ws, make([]time.Duration, len(ws))), spans(ws, by)
		moved := map[string]bool{}
		for i := range ws {
			moved[ws[i].Boot] = moved[ws[i].Boot] || by[i] != 0
			if after[i].end.After(now.Add(walltime.Tolerance)) {
				t.Fatalf("window %d ends at %v, now is %v", i, after[i].end, now)
			}
			for k := range i {
				if !overlap(before[i], before[k]) && overlap(after[i], after[k]) {
					t.Fatalf("windows %d and %d overlap: %v and %v, before %v and %v", k, i, after[k], after[i], before[k], before[i])
				}
			}
			if i == 0 || ws[i].Boot != ws[i-1].Boot {
				continue
			}
			pause, kept := after[i].start.Sub(after[i-1].end), before[i].start.Sub(before[i-1].end)
			stamped := time.Duration(ws[i].Start - ws[i-1].End)
			if moved[ws[i].Boot] && pause != stamped && pause != kept {
				t.Fatalf("windows %d and %d: pause of %v, by their stamps %v, by their clocks %v", i-1, i, pause, stamped, kept)
			}
			if !moved[ws[i].Boot] && pause != kept {
				t.Fatalf("windows %d and %d were not moved, but their pause is %v, was %v", i-1, i, pause, kept)
			}
		}
		// Nothing is moved that the rules do not name.
		allRight := true
		for i := range ws {
			w := &ws[i]
			if w.Boot == c.Boot {
				off := time.Duration(w.Offset - began)
				allRight = allRight && off.Abs() <= walltime.Tolerance && !before[i].end.After(now.Add(walltime.Tolerance))
				continue
			}
			allRight = allRight && !before[i].end.After(time.Unix(0, began).Add(walltime.Tolerance)) && before[i].end.After(now.Add(-walltime.MaxAge))
			for k := range ws {
				allRight = allRight && (ws[k].Boot != w.Boot || time.Duration(ws[k].Offset-w.Offset).Abs() <= walltime.Tolerance)
			}
		}
		if allRight && len(walltime.Shifts(now, ws, by)) != 0 {
			t.Fatalf("clocks are right, but windows were moved by %v", by)
		}
		// A boot whose clock was wrong is moved to the truth: offsets of the
		// sender's boot agree with the server afterwards, unless they contradict
		// its own clock.
		sound := !slices.ContainsFunc(ws, func(w usage.Window) bool { return w.Boot == c.Boot && w.End > c.Boottime })
		for i := range ws {
			if ws[i].Boot == c.Boot && sound {
				if off := time.Duration(ws[i].Offset + int64(by[i]) - began); off.Abs() > walltime.Tolerance {
					t.Fatalf("window %d is off by %v", i, off)
				}
			}
		}
	})
}

func TestJudgeTable(t *testing.T) {
	began := now.Add(-time.Hour).UnixNano()
	c := batch.Clock{Boot: "p", Boottime: int64(time.Hour)}
	w := func(boot string, from, to time.Duration, offset int64) usage.Window {
		return usage.Window{Boot: boot, Start: int64(from), End: int64(to), Offset: offset}
	}
	const h, d = time.Hour, 24 * time.Hour
	for _, c2 := range []struct {
		name string
		ws   []usage.Window
		want []time.Duration
	}{
		{"right", []usage.Window{w("p", 10*time.Minute, 11*time.Minute, began)}, []time.Duration{0}},
		{"within two minutes", []usage.Window{w("p", 0, time.Minute, began+2*minute)}, []time.Duration{0}},
		{"an hour ahead", []usage.Window{w("p", 0, time.Minute, began+int64(h))}, []time.Duration{-h}},
		{"no battery", []usage.Window{w("p", 0, time.Minute, 0)}, []time.Duration{time.Duration(began)}},
		{"as late as a clock can be set", []usage.Window{w("p", 0, time.Minute, int64(260*365*d))}, []time.Duration{time.Duration(began) - 260*365*d}},
		{"an earlier boot, as late", []usage.Window{w("a", 0, h, int64(260*365*d))}, []time.Duration{now.Sub(time.Unix(0, 0)) - 2*h - 260*365*d}},
		{"set right meanwhile: one answer for all", []usage.Window{w("p", 0, time.Minute, 0), w("p", time.Minute, 2*time.Minute, began+3e9)},
			[]time.Duration{time.Duration(began), -3 * time.Second}},
		{"within two minutes, but in the future", []usage.Window{w("p", h-time.Second, h+time.Second, began+2*minute)}, []time.Duration{-2 * time.Minute}},
		{"its end contradicts its clock", []usage.Window{w("p", 0, 2*h, began)}, []time.Duration{-h}},
		{"an earlier boot", []usage.Window{w("a", 0, h, now.Add(-5*h).UnixNano())}, []time.Duration{0}},
		{"an earlier boot in the future", []usage.Window{w("a", 0, h, now.Add(d).UnixNano())}, []time.Duration{-d - 2*h}},
		{"an earlier boot without a battery", []usage.Window{w("a", 0, h, 0)}, []time.Duration{now.Sub(time.Unix(0, 0)) - 2*h}},
		{"an earlier boot, set right meanwhile", []usage.Window{w("a", 0, h, 0), w("a", h, 2*h, now.Add(-9*h).UnixNano())},
			[]time.Duration{time.Duration(now.Add(-9 * h).UnixNano()), 0}},
		{"all an hour ahead: boots keep their order", []usage.Window{w("a", 0, h, now.Add(-h-30*time.Minute).UnixNano()), w("p", 0, time.Minute, began+int64(h))},
			[]time.Duration{-30 * time.Minute, -h}},
		{"moved into an earlier boot, which moves too", []usage.Window{w("a", 0, h, began-int64(h)+minute), w("p", 0, time.Minute, began+3*minute)},
			[]time.Duration{-time.Minute, -3 * time.Minute}},
	} {
		by, err := walltime.Judge(now, c, c2.ws, nil)
		if err != nil {
			t.Errorf("%s: %v", c2.name, err)
		}
		if d := gocmp.Diff(c2.want, by); d != "" {
			t.Errorf("%s (-want +got):\n%s", c2.name, d)
		}
	}
}

// TestJudgeEdges checks the edges of the rules: how far a clock may be off, how late and how old a
// window may be, and which statements and earlier bookings are followed.
func TestJudgeEdges(t *testing.T) {
	const h, d, m, year = time.Hour, 24 * time.Hour, time.Minute, 365 * 24 * time.Hour
	began := now.Add(-h)
	at := func(d time.Duration) int64 { return now.Add(d).UnixNano() } // an offset: the boot began then
	w := func(boot string, from, to time.Duration, offset int64) usage.Window {
		return usage.Window{Boot: boot, Start: int64(from), End: int64(to), Offset: offset}
	}
	windows := func(ws ...usage.Window) []usage.Window { return ws }
	one := windows(w("a", 0, h, at(-9*h))) // of an earlier boot, and right
	end := func(boot string, end time.Duration, offset int64) batch.BootEnd {
		return batch.BootEnd{Boot: boot, End: int64(end), Offset: offset}
	}
	type ends = []batch.BootEnd
	type placed = map[string]int64
	for _, c := range []struct {
		name    string
		earlier ends
		booked  placed
		ws      []usage.Window
		want    []time.Duration
	}{
		{"2 m ahead", nil, nil, windows(w("p", 0, m, at(-h+2*m))), []time.Duration{0}},
		{"more ahead", nil, nil, windows(w("p", 0, m, at(-h+2*m+1))), []time.Duration{-2*m - 1}},
		{"2 m behind", nil, nil, windows(w("p", 0, m, at(-h-2*m))), []time.Duration{0}},
		{"more behind", nil, nil, windows(w("p", 0, m, at(-h-2*m-1))), []time.Duration{2*m + 1}},
		{"2 m into the future", nil, nil, windows(w("p", 0, h+2*m, at(-h))), []time.Duration{0}},
		{"more", nil, nil, windows(w("p", 0, h+2*m+1, at(-h))), []time.Duration{-2*m - 1}},
		{"2 m into the future, of a wrong clock", nil, nil, windows(w("p", 0, h+m, at(-h+m))), []time.Duration{0}},
		{"more, of a wrong clock", nil, nil, windows(w("p", 0, h+m+1, at(-h+m))), []time.Duration{-m}},
		{"corrected, 2 m into the future", nil, nil, windows(w("p", 0, h+2*m, at(-h+3*m))), []time.Duration{-3 * m}},
		{"corrected, more", nil, nil, windows(w("p", 0, h+2*m+1, at(-h+3*m))), []time.Duration{-5*m - 1}},
		{"the latest window counts", nil, nil, windows(w("p", 0, h+3*m, at(-h)), w("p", h+3*m, h+3*m, at(-h-2*m))), []time.Duration{-3 * m, -m}},

		{"earlier boot, 2 m into the next", nil, nil, windows(w("a", 0, h, at(-2*h+2*m))), []time.Duration{0}},
		{"earlier boot, more", nil, nil, windows(w("a", 0, h, at(-2*h+2*m+1))), []time.Duration{-2*m - 1}},
		{"earlier boot, 400 days old", nil, nil, windows(w("a", 0, h, at(-400*d-h))), []time.Duration{0}},
		{"earlier boot, older", nil, nil, windows(w("a", 0, h, at(-400*d-h-1))), []time.Duration{400*d - h + 1}},
		{"earlier boot, set by 2 m", nil, nil, windows(w("a", 0, h, at(-9*h)), w("a", h, h, at(-9*h+2*m))), []time.Duration{0, 0}},
		{"earlier boot, set by more", nil, nil, windows(w("a", 0, h, at(-9*h)), w("a", h, h, at(-9*h+2*m+1))), []time.Duration{2*m + 1, 0}},
		{"earlier boot, set back by 2 m", nil, nil, windows(w("a", 0, h, at(-9*h)), w("a", h, h, at(-9*h-2*m))), []time.Duration{0, 0}},
		{"earlier boot, set back by more", nil, nil, windows(w("a", 0, h, at(-9*h)), w("a", h, h, at(-9*h-2*m-1))), []time.Duration{-2*m - 1, 0}},
		{"two earlier boots: both end before the next one", nil, nil, windows(w("a", 0, h, at(-9*h)), w("b", 0, h, at(-9*h+m)), w("p", 0, m, 0)), []time.Duration{0 - 59*m, 0, began.Sub(time.Unix(0, 0))}},
		{"two earlier boots, nothing wrong", nil, nil, windows(w("a", 0, h, at(-9*h)), w("b", 0, h, at(-9*h+m))), []time.Duration{0, 0}},
		{"the first of three is limited by the earliest later one", nil, nil, windows(w("a", 0, h, at(-5*h)), w("b", 0, h, at(-9*h)), w("p", 0, m, 0)), []time.Duration{-5 * h, 0, began.Sub(time.Unix(0, 0))}},

		{"stated, up to the next boot", ends{end("a", h, at(-2*h))}, nil, one, []time.Duration{7 * h}},
		{"stated, into the next boot", ends{end("a", h, at(-2*h+1))}, nil, one, []time.Duration{7 * h}},
		{"stated, before it", ends{end("a", h, at(-2*h-1))}, nil, one, []time.Duration{7*h - 1}},
		{"stated, 400 days old", ends{end("a", h, at(-400*d-h))}, nil, one, []time.Duration{-400*d + 8*h}},
		{"stated, older", ends{end("a", h, at(-400*d-h-1))}, nil, one, []time.Duration{7 * h}},
		{"stated, with a later window in the batch", ends{end("a", h-1, at(-20*h))}, nil, one, []time.Duration{0}},
		{"stated, with the last window in the batch", ends{end("a", h, at(-20*h))}, nil, one, []time.Duration{-11 * h}},
		{"two stated: the first ends where the second begins", ends{end("a", h, at(-9*h)), end("b", h, at(-9*h))}, nil, one, []time.Duration{-h}},
		{"stated twice: the last one counts", ends{end("a", h, at(-30*h)), end("a", h, at(-20*h))}, nil, one, []time.Duration{-11 * h}},
		{"an impossible end is ignored", ends{end("x", -1, at(-20*h))}, nil, one, []time.Duration{0}},
		{"an end at 0", ends{end("x", 0, at(-20*h))}, nil, one, []time.Duration{-12 * h}},
		{"the latest end", ends{end("x", 30*year, at(-20*h))}, nil, one, []time.Duration{7*h - 30*year}},
		{"a later end is ignored", ends{end("x", 30*year+1, at(-20*h))}, nil, one, []time.Duration{0}},
		{"the latest offset", ends{end("a", h, int64(260*year))}, nil, one, []time.Duration{7 * h}},
		{"a later offset is ignored", ends{end("a", h, int64(260*year+1))}, nil, one, []time.Duration{0}},
		{"an offset far below 0", ends{end("a", h, int64(-260*year))}, nil, one, []time.Duration{7 * h}},
		{"a lower offset is ignored", ends{end("a", h, int64(-260*year-1))}, nil, one, []time.Duration{0}},
		{"the present boot is not stated", ends{end("p", h, at(-20*h))}, nil, one, []time.Duration{0}},

		{"booked elsewhere", nil, placed{"a": at(-20 * h)}, one, []time.Duration{-11 * h}},
		{"booked and stated", ends{end("a", h, at(-30*h))}, placed{"a": at(-20 * h)}, one, []time.Duration{-11 * h}},
		{"booked, 2 m into the future", nil, placed{"a": at(-h + 2*m)}, one, []time.Duration{8*h + 2*m}},
		{"booked, more", nil, placed{"a": at(-h + 2*m + 1)}, one, []time.Duration{8 * h}},
		{"stated before a booked one", ends{end("a", h, at(-9*h)), end("b", h, at(-9*h))}, placed{"b": at(-20 * h)}, one, []time.Duration{-12 * h}},
		{"booked later than the next boot", ends{end("a", h, at(-9*h)), end("b", h, at(-9*h)), end("c", h, at(-30*h))}, placed{"b": at(-20 * h)}, one, []time.Duration{-22 * h}},
		{"what is booked stays, whatever moves", nil, placed{"a": at(-90 * m)}, append(windows(w("p", 0, m, 0)), one...), []time.Duration{began.Sub(time.Unix(0, 0)), 7*h + 30*m}},
	} {
		by, err := walltime.Judge(now, batch.Clock{Boot: "p", Boottime: int64(h), Earlier: c.earlier}, c.ws, c.booked)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := gocmp.Diff(c.want, by); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestJudgeRefuses(t *testing.T) {
	const far = 1 << 62
	sound := batch.Clock{Boot: "p", Boottime: int64(time.Hour)}
	for name, c := range map[string]struct {
		clock batch.Clock
		ws    []usage.Window
	}{
		"no boot":            {batch.Clock{Boottime: 1}, nil},
		"clock below zero":   {batch.Clock{Boot: "p", Boottime: -1}, nil},
		"clock out of reach": {batch.Clock{Boot: "p", Boottime: far}, nil},
		"window of no boot":  {sound, []usage.Window{{End: 1}}},
		"ends before":        {sound, []usage.Window{{Boot: "p", Start: 2, End: 1}}},
		"below zero":         {sound, []usage.Window{{Boot: "p", Start: -2, End: 1}}},
		"end out of reach":   {sound, []usage.Window{{Boot: "p", End: far}}},
		"offset":             {sound, []usage.Window{{Boot: "p", End: 1, Offset: math.MaxInt64}}},
		"offset below":       {sound, []usage.Window{{Boot: "p", End: 1, Offset: -far}}},
		"overlap":            {sound, []usage.Window{{Boot: "p", Start: 0, End: 10}, {Boot: "p", Start: 9, End: 20}}},
		"before 1970":        {sound, []usage.Window{{Boot: "a", End: int64(30 * 365 * 24 * time.Hour)}, {Boot: "b", End: int64(30 * 365 * 24 * time.Hour)}}},
	} {
		if by, err := walltime.Judge(now, c.clock, c.ws, nil); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, %v, want invalid", name, by, err)
		}
	}
}

// TestStampLimits checks the first and last stamps that a window and a clock may have.
func TestStampLimits(t *testing.T) {
	const year = 365 * 24 * int64(time.Hour)
	id := strings.Repeat("b", 128)
	for _, c := range []struct {
		name string
		w    usage.Window
		ok   bool
	}{
		{"longest boot id", usage.Window{Boot: id}, true},
		{"longer boot id", usage.Window{Boot: id + "b"}, false},
		{"no boot id", usage.Window{}, false},
		{"from 0 on", usage.Window{Boot: "b", Start: 0, End: 5}, true},
		{"from before 0 on", usage.Window{Boot: "b", Start: -1, End: 5}, false},
		{"no length", usage.Window{Boot: "b", Start: 5, End: 5}, true},
		{"less than no length", usage.Window{Boot: "b", Start: 5, End: 4}, false},
		{"30 years", usage.Window{Boot: "b", Start: 5, End: 30 * year}, true},
		{"more than 30 years", usage.Window{Boot: "b", Start: 5, End: 30*year + 1}, false},
		{"clock at the latest", usage.Window{Boot: "b", Offset: 260 * year}, true},
		{"clock later", usage.Window{Boot: "b", Offset: 260*year + 1}, false},
		{"clock at the earliest", usage.Window{Boot: "b", Offset: -30 * year}, true},
		{"clock earlier", usage.Window{Boot: "b", Offset: -30*year - 1}, false},
	} {
		if err := walltime.Check([]usage.Window{c.w}); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		start int64
		boot  string
		ok    bool
	}{{10, "b", true}, {9, "b", false}, {9, "c", true}} {
		ws := []usage.Window{{Boot: "b", Start: 5, End: 10}, {Boot: "a", Start: 50, End: 100}, {Boot: c.boot, Start: c.start, End: 20}}
		if err := walltime.Check(ws); (err == nil) != c.ok {
			t.Errorf("a window of boot %s from %d on, after one of boot b up to 10: %v", c.boot, c.start, err)
		}
	}
	for _, c := range []struct {
		name  string
		clock batch.Clock
		ok    bool
	}{
		{"longest boot id", batch.Clock{Boot: id}, true},
		{"longer boot id", batch.Clock{Boot: id + "b"}, false},
		{"at 0", batch.Clock{Boot: "b"}, true},
		{"before 0", batch.Clock{Boot: "b", Boottime: -1}, false},
		{"at 30 years", batch.Clock{Boot: "b", Boottime: 30 * year}, true},
		{"after 30 years", batch.Clock{Boot: "b", Boottime: 30*year + 1}, false},
	} {
		if _, err := walltime.Judge(now, c.clock, nil, nil); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("clock %s: %v", c.name, err)
		}
	}
}

// TestJudgeSince1970 checks that 1970 is the first time that a window may have.
func TestJudgeSince1970(t *testing.T) {
	c := batch.Clock{Boot: "p", Boottime: int64(time.Hour)}
	ws := []usage.Window{{Boot: "p", End: minute}}
	if by, err := walltime.Judge(time.Unix(3600, 0), c, ws, nil); err != nil || by[0] != 0 {
		t.Errorf("%v, %v", by, err)
	}
	if by, err := walltime.Judge(time.Unix(3600, -1), c, []usage.Window{{Boot: "p", End: minute, Offset: -1}}, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a nanosecond before 1970: %v, %v", by, err)
	}
}

func TestBootStart(t *testing.T) {
	c := batch.Clock{Boot: "p", Boottime: int64(time.Hour)}
	fresh := now.Add(-time.Hour).UnixNano()
	for _, x := range []struct{ held, want int64 }{{0, fresh}, {fresh + 5e8, fresh + 5e8}, {fresh - 1e9, fresh - 1e9}, {fresh + 1e9, fresh + 1e9}, {fresh - 1e9 - 1, fresh}, {fresh + 1e9 + 1, fresh}} {
		if got := walltime.BootStart(now, c, x.held); got != x.want {
			t.Errorf("Began with %d held = %d, want %d", x.held-fresh, got-fresh, x.want-fresh)
		}
	}
}

// A run of windows that were moved alike is one line.
func TestShifts(t *testing.T) {
	ws := []usage.Window{{Boot: "a", End: 1}, {Boot: "a", Start: 1, End: 2}, {Boot: "p", End: 3}, {Boot: "p", Start: 3, End: 4}, {Boot: "p", Start: 4, End: 5}, {Boot: "p", Start: 5, End: 6}}
	by := []time.Duration{time.Hour, time.Hour + time.Second/2, time.Hour, 2 * time.Hour, 0, 2 * time.Hour}
	var got []string
	for _, s := range walltime.Shifts(now, ws, by) {
		if !s.At.Equal(now) {
			t.Errorf("found at %v, want now", s.At)
		}
		got = append(got, fmt.Sprint(s.Boot, " ", s.By, " ", s.From.UnixNano()-int64(s.By)))
	}
	if d := gocmp.Diff([]string{"a 1h0m0s 0", "p 1h0m0s 0", "p 2h0m0s 3", "p 2h0m0s 5"}, got); d != "" {
		t.Errorf("shifts (-want +got):\n%s", d)
	}
	if got := walltime.Shifts(now, ws, make([]time.Duration, len(ws))); got != nil {
		t.Errorf("nothing moved gives %v", []batch.Shift(got))
	}
}

// TestShiftsEdges checks that a shift of a second is not one, and that windows whose shifts differ by
// a second were moved alike.
func TestShiftsEdges(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		by   []time.Duration
		want []time.Duration
	}{
		{[]time.Duration{s, -s}, nil},
		{[]time.Duration{s + 1, -s - 1}, []time.Duration{s + 1, -s - 1}},
		{[]time.Duration{5 * s, 6 * s, 4 * s}, []time.Duration{5 * s}},
		{[]time.Duration{5 * s, 6*s + 1, 5*s + 1}, []time.Duration{5 * s, 6*s + 1}},
		{[]time.Duration{5 * s, 4*s - 1}, []time.Duration{5 * s, 4*s - 1}},
		{[]time.Duration{5 * s, s, 5 * s}, []time.Duration{5 * s, 5 * s}},
	} {
		var got []time.Duration
		for _, s := range walltime.Shifts(now, []usage.Window{{Boot: "a"}, {Boot: "a"}, {Boot: "a"}}[:len(c.by)], c.by) {
			got = append(got, s.By)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("shifts of %v: %v, want %v", c.by, got, c.want)
		}
	}
}

// TestPlaces checks where boots are placed: where their last windows are.
func TestPlaces(t *testing.T) {
	ws := []usage.Window{{Boot: "a", Offset: 10}, {Boot: "b", Offset: 20}, {Boot: "a", Offset: 30}, {Boot: "p", Offset: 40}}
	got := walltime.Places(batch.Clock{Boot: "p"}, ws, []time.Duration{1, 2, 3, 4}, map[string]int64{"b": 7})
	want := []batch.BootPlace{{Boot: "a", Offset: 33, New: true}, {Boot: "b", Offset: 22}, {Boot: "p", Offset: 44}}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestMoveGapsEdges checks which window an edge of a gap moves with: the nearest one, of two that are
// as near the first, and none out of what nanoseconds can hold.
func TestMoveGapsEdges(t *testing.T) {
	const m, year = time.Minute, 365 * 24 * time.Hour
	at := func(d time.Duration) time.Time { return now.Add(d) }
	date := func(year int, month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	// Windows from -60 m to -50 m, from -40 m to -30 m, and from 1 ns later on to -20 m.
	ws := []usage.Window{{End: int64(10 * m), Offset: at(-60 * m).UnixNano()}, {Start: int64(20 * m), End: int64(30 * m), Offset: at(-60 * m).UnixNano()}, {Start: int64(30*m) + 1, End: int64(40 * m), Offset: at(-60 * m).UnixNano()}}
	for _, c := range []struct {
		name   string
		reason usage.Reason
		by     []time.Duration
		from   time.Time
		want   time.Time
	}{
		{"in the middle", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-45 * m), at(-45*m - 1)},
		{"nearer to the second", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-45*m + 1), at(-45*m - 1)},
		{"within the second", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-35 * m), at(-35*m - 2)},
		{"before all", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-90 * m), at(-90*m - 1)},
		{"after all", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-10 * m), at(-10*m - 3)},
		{"within the third, close to the second", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-30*m + 1), at(-30*m - 2)},
		{"at the end of the second, close to the third", usage.Unwatched, []time.Duration{-1, -2, -3}, at(-30 * m), at(-30*m - 2)},
		{"within reach of a reboot", usage.Rebooted, []time.Duration{-1, -2, -3}, at(-62 * m), at(-62*m - 1)},
		{"out of reach of a reboot", usage.Rebooted, []time.Duration{-1, -2, -3}, at(-62*m - 1), at(-62*m - 1)},
		{"in 1970", usage.Unwatched, []time.Duration{50 * year, 0, 0}, date(1970, 1, 1), date(1970, 1, 1).Add(50 * year)},
		{"in 1969", usage.Unwatched, []time.Duration{50 * year, 0, 0}, date(1969, 12, 31), date(1970, 1, 1)},
		{"in 2261", usage.Unwatched, []time.Duration{0, 0, -250 * year}, date(2261, 12, 31), date(2261, 12, 31).Add(-250 * year)},
		{"in 2262", usage.Unwatched, []time.Duration{0, 0, -250 * year}, date(2262, 1, 1), at(2 * m)},
	} {
		// The end of the gap is far behind all cases.
		got := walltime.MoveGaps(now, ws, c.by, []usage.Gap{{From: c.from, To: date(2299, 1, 1), Reason: c.reason}})[0]
		if !got.From.Equal(c.want) || !got.To.Equal(at(2*m)) {
			t.Errorf("%s: from %v to %v, want from %v to %v", c.name, got.From, got.To, c.want, at(2*m))
		}
	}
}

func TestMoveGaps(t *testing.T) {
	at := func(d time.Duration) time.Time { return now.Add(d) }
	const h = time.Hour
	// The sender's clock is an hour ahead; the boot before ended at -3 h.
	ws := []usage.Window{{Boot: "p", Start: 0, End: int64(h), Offset: at(-h).UnixNano()}}
	by := []time.Duration{-h}
	for _, c := range []struct {
		name     string
		gap      usage.Gap
		from, to time.Time
	}{
		{"along with the window", usage.Gap{From: at(-h), To: at(-h / 2), Reason: usage.Unwatched}, at(-2 * h), at(-h - h/2)},
		{"of another boot's clock", usage.Gap{From: at(-3 * h), To: at(-h), Reason: usage.Rebooted}, at(-3 * h), at(-2 * h)},
		{"it would end before it began", usage.Gap{From: at(-h - h/2), To: at(-h), Reason: usage.Rebooted}, at(-2 * h), at(-2 * h)},
		{"in the future", usage.Gap{From: at(5 * h), To: at(9 * h), Reason: usage.Overflow}, at(2 * time.Minute), at(2 * time.Minute)},
		{"in 1970", usage.Gap{From: time.Unix(int64(h/time.Second), 0), To: time.Date(1970, 6, 1, 0, 0, 0, 0, time.UTC)}, time.Unix(0, 0), time.Date(1970, 5, 31, 23, 0, 0, 0, time.UTC)},
		{"out of this world", usage.Gap{From: time.Time{}, To: time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)}, time.Unix(0, 0).UTC(), at(2 * time.Minute)},
	} {
		got := walltime.MoveGaps(now, ws, by, []usage.Gap{c.gap})[0]
		if !got.From.Equal(c.from) || !got.To.Equal(c.to) || got.Reason != c.gap.Reason {
			t.Errorf("%s: from %v to %v, want %v to %v", c.name, got.From, got.To, c.from, c.to)
		}
	}
}

// A backlog is of earlier boots and of the present one. Each boot but the present one ended before the
// next one began.
func drawBacklog(t *rapid.T) (c batch.Clock, ws []usage.Window) {
	c = batch.Clock{Boot: "present", Boottime: rapid.Int64Range(int64(time.Hour), int64(30*24*time.Hour)).Draw(t, "boottime")}
	began := now.UnixNano() - c.Boottime
	// Of the present boot the clock is right, or the server corrects it: one within Tolerance could
	// begin before the server says that the boot did.
	wrong := rapid.SampledFrom([]int64{0, -began, 5 * minute, -5 * minute, int64(800 * 24 * time.Hour)})
	fill := func(boot string, began int64, length int64) {
		off := began + wrong.Draw(t, "wrong")
		for at := rapid.Int64Range(0, minute).Draw(t, "at"); at < length && len(ws) < 60; {
			if rapid.IntRange(0, 5).Draw(t, "step") == 0 && boot != c.Boot {
				off = began + wrong.Draw(t, "wrong") + rapid.SampledFrom([]int64{0, 30e9, -30e9}).Draw(t, "slightly")
			}
			w := usage.Window{Boot: boot, Extent: usage.Extent{Scope: usage.Machine}, Start: at, End: min(length, at+rapid.Int64Range(1, 5*minute).Draw(t, "length")), Offset: off}
			at = w.End + rapid.SampledFrom([]int64{0, 0, 10e9}).Draw(t, "pause")
			ws = append(ws, w)
		}
	}
	var lengths []int64
	for range rapid.IntRange(1, 3).Draw(t, "earlier") {
		lengths = append(lengths, rapid.Int64Range(minute, int64(2*time.Hour)).Draw(t, "boot"))
	}
	at := began
	for _, length := range slices.Backward(lengths) {
		at -= length + rapid.Int64Range(0, int64(time.Hour)).Draw(t, "off")
	}
	for i, length := range lengths {
		boot := fmt.Sprint("boot", i)
		fill(boot, at, length)
		if n := len(ws); n > 0 && ws[n-1].Boot == boot {
			c.Earlier = append(c.Earlier, batch.BootEnd{Boot: boot, End: ws[n-1].End, Offset: ws[n-1].Offset})
		}
		at += length
	}
	fill(c.Boot, began, min(c.Boottime, int64(time.Hour)))
	return c, ws
}

// deliver judges the windows in batches that end before these, and returns where they are placed.
func deliver(t fatal, c batch.Clock, ws []usage.Window, ends []int) []span {
	t.Helper()
	booked := map[string]int64{}
	var placed []span
	from := 0
	for _, to := range append(ends, len(ws)) {
		if to <= from {
			continue
		}
		b := ws[from:to]
		known := map[string]int64{}
		for boot, offset := range booked {
			if boot != c.Boot {
				known[boot] = offset
			}
		}
		by, err := walltime.Judge(now, c, b, known)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range walltime.Places(c, b, by, known) {
			booked[p.Boot] = p.Offset
		}
		placed, from = append(placed, spans(b, by)...), to
	}
	return placed
}

type fatal interface {
	Helper()
	Fatal(...any)
}

// TestBacklog checks that a backlog is placed alike however it is divided into batches: in the order
// of its windows, no time twice, and none in the future.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, ws := drawBacklog(t)
		if len(ws) == 0 {
			return
		}
		whole := deliver(t, c, ws, nil)
		ends := rapid.SliceOfN(rapid.IntRange(1, len(ws)), 0, 4).Draw(t, "cuts")
		slices.Sort(ends)
		cut := deliver(t, c, ws, ends)
		if d := gocmp.Diff(whole, cut, gocmp.AllowUnexported(span{})); d != "" {
			t.Fatalf("in batches up to %v (-one batch +several):\n%s", ends, d)
		}
		for i := range cut {
			if cut[i].end.Sub(cut[i].start) != ws[i].Length() {
				t.Fatalf("window %d of %v takes %v", i, ws[i].Length(), cut[i])
			}
			if i > 0 && cut[i].start.Before(cut[i-1].end) {
				t.Fatalf("window %d of boot %s begins at %v, before the previous one ended at %v", i, ws[i].Boot, cut[i].start, cut[i-1].end)
			}
			if cut[i].end.After(now.Add(walltime.Tolerance)) {
				t.Fatalf("window %d ends at %v, now is %v", i, cut[i].end, now)
			}
		}
	})
}

// TestBacklogOfOlderAgents checks backlogs of agents that do not state what they hold of earlier boots.
func TestBacklogOfOlderAgents(t *testing.T) {
	const h = time.Hour
	began := now.Add(-2 * h)
	c := batch.Clock{Boot: "p", Boottime: int64(2 * h)}
	ws := []usage.Window{{Boot: "a", Start: 0, End: int64(h)}, {Boot: "a", Start: int64(h), End: int64(2 * h)}, {Boot: "a", Start: int64(2 * h), End: int64(4 * h)}}
	got := deliver(t, c, ws, []int{1, 2})
	want := []span{{began.Add(-h), began}, {began, began.Add(h)}, {now.Add(-2 * h), now}} // the last one would end in the future
	if d := gocmp.Diff(want, got, gocmp.AllowUnexported(span{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// A boot that was booked while it ran stays where it was placed then.
	by, err := walltime.Judge(now, c, ws[:1], map[string]int64{"a": now.Add(-9 * h).UnixNano()})
	if err != nil || !walltime.Start(&ws[0], by[0]).Equal(now.Add(-9*h)) {
		t.Errorf("a boot that was booked 9 h ago is placed at %v, %v", walltime.Start(&ws[0], by[0]), err)
	}
}

// TestBatchOfLaterWindows checks that a batch that was made before its agent started, of later windows than
// those that waited then, ends before the next boot begins, and that earlier windows follow it.
func TestBatchOfLaterWindows(t *testing.T) {
	const h = time.Hour
	began := now.Add(-2 * h)
	c := batch.Clock{Boot: "p", Boottime: int64(2 * h), Earlier: []batch.BootEnd{{Boot: "a", End: int64(h)}}}
	got := deliver(t, c, []usage.Window{{Boot: "a", Start: int64(h), End: int64(3 * h)}, {Boot: "a", Start: 0, End: int64(h)}}, []int{1})
	want := []span{{began.Add(-2 * h), began}, {began.Add(-3 * h), began.Add(-2 * h)}}
	if d := gocmp.Diff(want, got, gocmp.AllowUnexported(span{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestJudgeOddStatements checks that no statement of a sender harms more than its own windows' places.
func TestJudgeOddStatements(t *testing.T) {
	odd := rapid.OneOf(rapid.Int64(), rapid.Int64Range(0, int64(24*time.Hour)), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -1, 0}))
	rapid.Check(t, func(t *rapid.T) {
		c, ws := drawBoots(t)
		booked := map[string]int64{}
		for range rapid.IntRange(0, 5).Draw(t, "stated") {
			boot := rapid.SampledFrom([]string{"a", "b", "present", "other"}).Draw(t, "boot")
			c.Earlier = append(c.Earlier, batch.BootEnd{Boot: boot, End: odd.Draw(t, "end"), Offset: odd.Draw(t, "offset")})
		}
		by, err := walltime.Judge(now, c, ws, booked)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		for i, s := range spans(ws, by) {
			if s.end.After(now.Add(walltime.Tolerance)) || s.start.Before(time.Unix(0, 0)) {
				t.Fatalf("window %d is placed at %v", i, s)
			}
		}
	})
}
