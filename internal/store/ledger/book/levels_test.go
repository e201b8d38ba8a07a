package book

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
)

// A pod's containers are looked at again and again. Spans have the true levels between two looks that are not far apart; after
// an outage they have the former or the later ones, with a mark. Spans follow one another without holes.
func TestReviseDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const scheduled = 1000
		level := func() pod.Levels {
			l := pod.Levels{CPU: rapid.Int64Range(0, 3).Draw(t, "cpu"), CPULimit: rapid.Int64Range(-1, 2).Draw(t, "limit"), MemoryLimit: pod.NoLimit}
			return l
		}
		var spans []levelSpan
		truth := map[int64]pod.Levels{} // by second
		unsure := map[int64]bool{}
		now, levels := int64(scheduled), level()
		finished := int64(0)
		spans = revise(spans, levels, scheduled, 0, now, now)
		for range rapid.IntRange(1, 8).Draw(t, "looks") {
			since, old := now, levels
			now += rapid.SampledFrom([]int64{0, 1, 59, outage, outage + 1, 10_000}).Draw(t, "later")
			for s := since; s < now; s++ {
				truth[s] = old
			}
			levels = level()
			if rapid.IntRange(0, 5).Draw(t, "finish") == 0 {
				finished = since + (now-since)/3
			}
			switch n := rapid.IntRange(0, 5).Draw(t, "what"); {
			case n == 0 && finished == 0:
				before := spans
				var is bool
				if spans, is = vanish(before, since, now); is != (now-since > outage) {
					t.Fatalf("gone at %d, seen at %d: unsure %v", now, since, is)
				}
				if is && rapid.Bool().Draw(t, "settled") {
					seen := since + 1 + (now-since)/4
					spans = settle(spans, seen)
					if got := spans[len(spans)-1].to; got != seen {
						t.Fatalf("settled at %d, it ends at %d: %+v", seen, got, spans)
					}
				}
				for s := since; s < now && is; s++ {
					unsure[s] = true
				}
				finished = now
			default:
				if n < 3 {
					levels = old
				}
				spans = revise(spans, levels, scheduled, finished, since, now)
				if again := revise(spans, levels, scheduled, finished, now, now); len(again) != len(spans) {
					t.Fatalf("looked at again, %+v becomes %+v", spans, again)
				}
				for s := since; s < now && old != levels && now-since > outage; s++ {
					unsure[s] = true
				}
			}
			for i, s := range spans {
				if s.to != 0 && s.to <= s.from || i > 0 && s.from != spans[i-1].to || s.to == 0 && i < len(spans)-1 {
					t.Fatalf("spans %+v", spans)
				}
			}
			if finished != 0 {
				break
			}
		}
		for s := int64(scheduled); s < now; s++ {
			u, some := levelsUsage(spans, "c", s, s+1)
			if finished != 0 && s >= finished && some {
				t.Fatalf("it reserves something at %d, after its end at %d: %+v", s, finished, spans)
			}
			if unsure[s] || finished != 0 && s >= finished {
				continue
			}
			if !some || u.Amount[usage.CPUReserved] != truth[s].CPU*1e6 || u.Amount[usage.ReservedTime] != 1e9 || u.Quality.Get(usage.CPUReserved) != usage.Measured {
				t.Fatalf("at %d: %v %v, want %+v measured: %+v", s, some, u.Amount[usage.CPUReserved], truth[s], spans)
			}
			if limit, ok := u.Get(usage.CPULimit); ok != (truth[s].CPULimit >= 0) || ok && limit != truth[s].CPULimit*1e6 {
				t.Fatalf("at %d: limit %d %v, want %+v", s, limit, ok, truth[s])
			}
		}
	})
}

// Spans amount to the sum of their parts, wherever they are cut.
func TestLevelsUsageCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spans := []levelSpan{{from: 100, to: 163, Levels: pod.Levels{CPU: 250, CPULimit: pod.NoLimit, Memory: 1 << 30, MemoryLimit: 1 << 31, Storage: 5}},
			{from: 163, to: 170, rough: true, Levels: pod.Levels{CPU: 500, CPULimit: 1000, MemoryLimit: pod.NoLimit, GPU: 1000}}, {from: 170, Levels: pod.Levels{CPU: 1, CPULimit: 1, MemoryLimit: 1}}}
		var sum usage.Usage
		at := int64(0)
		for at < 1000 {
			to := at + rapid.Int64Range(1, 400).Draw(t, "step")
			if u, some := levelsUsage(spans, "c", at, min(to, 1000)); some {
				sum.Add(&u)
			}
			at = to
		}
		want := map[usage.Resource]int64{usage.CPUReserved: (63*250 + 7*500 + 830) * 1e6, usage.CPULimit: (7*1000 + 830) * 1e6, usage.MemoryReserved: 63 << 30,
			usage.MemoryLimit: 63<<31 + 830, usage.StorageReserved: 63 * 5, usage.GPUReserved: 7000 * 1e6, usage.ReservedTime: 900e9, usage.CPULimitedTime: 837e9, usage.MemoryLimitedTime: 893e9}
		for r, v := range want {
			if sum.Amount[r] != v {
				t.Fatalf("%s is %d, want %d", r, sum.Amount[r], v)
			}
		}
		if q := sum.Quality.Get(usage.CPUReserved); q != usage.Apportioned || sum.Covered != 0 {
			t.Fatalf("quality %v, covered %v", q, sum.Covered)
		}
	})
}

// Changes in cases that are rare.
func TestRevise(t *testing.T) {
	one, two := pod.Levels{CPU: 1}, pod.Levels{CPU: 2}
	const day = int64(24 * 3600)
	many := func(first int64) (spans []levelSpan) { // one second each, but for the first one and the last one
		for i := range int64(spansPerDay) {
			spans = append(spans, levelSpan{from: 1000 + i, to: 1001 + i, Levels: pod.Levels{CPU: 10 + i}})
		}
		spans[0].from, spans[spansPerDay-1].to = first, 0
		return spans
	}
	for name, c := range map[string]struct {
		had                 []levelSpan
		now                 pod.Levels
		from, to, since, at int64
		want                []levelSpan // the last ones
	}{
		"new":                            {nil, one, 5, 0, 9, 9, []levelSpan{{from: 5, Levels: one}}},
		"new and over":                   {nil, one, 5, 8, 9, 9, []levelSpan{{from: 5, to: 8, Levels: one}}},
		"over at once":                   {nil, one, 5, 5, 9, 9, nil},
		"comes again at its end":         {[]levelSpan{{from: 5, to: 7, Levels: one}}, one, 7, 0, 9, 9, []levelSpan{{from: 5, to: 7, Levels: one}, {from: 7, Levels: one}}},
		"was not over":                   {[]levelSpan{{from: 5, to: 7, Levels: one}}, one, 6, 0, 9, 9, []levelSpan{{from: 5, Levels: one}}},
		"was taken as gone":              {[]levelSpan{{from: 5, to: 7, Levels: one}, {7, 9, true, one}}, one, 5, 0, 9, 20, []levelSpan{{from: 5, Levels: one}}},
		"with others, was taken as gone": {[]levelSpan{{from: 5, to: 7, Levels: two}, {7, 9, true, one}}, one, 5, 0, 9, 20, []levelSpan{{from: 5, to: 7, Levels: two}, {from: 7, rough: true, Levels: one}}},
		"a change":                       {[]levelSpan{{from: 5, Levels: one}}, two, 5, 0, 900, 1000, []levelSpan{{from: 5, to: 1000, Levels: one}, {from: 1000, Levels: two}}},
		"after an outage": {[]levelSpan{{from: 5, Levels: one}}, two, 5, 0, 800, 1000,
			[]levelSpan{{from: 5, to: 800, Levels: one}, {800, 900, true, one}, {900, 1000, true, two}, {from: 1000, Levels: two}}},
		"after an odd one": {[]levelSpan{{from: 5, Levels: one}}, two, 5, 0, 801, 1000,
			[]levelSpan{{from: 5, to: 801, Levels: one}, {801, 900, true, one}, {900, 1000, true, two}, {from: 1000, Levels: two}}},
		"before it was there":       {[]levelSpan{{from: 900, Levels: one}}, two, 5, 0, 500, 1000, []levelSpan{{from: 900, to: 1000, Levels: one}, {from: 1000, Levels: two}}},
		"over before the change":    {[]levelSpan{{from: 5, Levels: one}}, two, 5, 700, 990, 1000, []levelSpan{{from: 5, to: 700, Levels: one}}},
		"one of many within a day":  {many(1201 - day), two, 5, 0, 1200, 1200, []levelSpan{{from: 1199, Levels: two}}},
		"one of many in a day more": {many(1200 - day), two, 5, 0, 1200, 1200, []levelSpan{{from: 1199, to: 1200, Levels: pod.Levels{CPU: 209}}, {from: 1200, Levels: two}}},
	} {
		was := slices.Clone(c.had)
		got := revise(c.had, c.now, c.from, c.to, c.since, c.at)
		if got = got[max(0, len(got)-max(1, len(c.want))):]; !slices.Equal(got, c.want) || !slices.Equal(was, c.had) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Rows are put again from the first second on at which something else is reserved.
func TestFirstChange(t *testing.T) {
	one, two := pod.Levels{CPU: 1}, pod.Levels{CPU: 2}
	a := func(from, to int64) []levelSpan { return []levelSpan{{from: from, to: to, Levels: one}} }
	for name, c := range map[string]struct {
		had, now []levelSpan
		want     int64 // 0 is none
	}{
		"nothing":       {nil, nil, 0},
		"new":           {nil, a(5, 9), 5},
		"gone":          {a(5, 9), nil, 5},
		"shorter":       {a(5, 9), a(5, 7), 7},
		"longer":        {a(5, 7), a(5, 9), 7},
		"ends":          {a(5, 0), a(5, 8), 8},
		"goes on":       {a(5, 8), a(5, 0), 8},
		"begins later":  {a(5, 9), a(6, 9), 5},
		"begins before": {a(6, 9), a(5, 9), 5},
		"other levels":  {a(5, 9), []levelSpan{{from: 5, to: 9, Levels: two}}, 5},
		"not sure":      {a(5, 9), []levelSpan{{5, 9, true, one}}, 5},
	} {
		if got, ok := firstChange(c.had, c.now); got != c.want || ok != (c.want != 0) {
			t.Errorf("%s: %d, %t, want %d", name, got, ok, c.want)
		}
	}
}

// TestManyLevels: rows of a volume that was measured and resized very often take no time for what is before or after them: if each
// went through all spans and levels, this would take hours.
func TestManyLevels(t *testing.T) {
	const minutes, resizes, step = 2_000_000, 1_000, 10
	var levels []usedLevel
	for m := range int64(minutes) {
		levels = append(levels, usedLevel{m, m})
	}
	var spans []levelSpan
	for i := range int64(resizes) {
		const length = minutes * 60 / resizes
		spans = append(spans, levelSpan{from: i * length, to: (i + 1) * length, Levels: pod.Levels{Storage: 1}})
	}
	for m := int64(0); m < minutes; m += step {
		from, to := m*60, (m+2)*60
		u, some := volumeUsage(spans, levels, from, to)
		if want := 60 * (m + m + 1); !some || u.Amount[usage.Storage] != want || u.Amount[usage.StorageReserved] != 120 || u.Quality.Get(usage.Storage) != usage.Measured {
			t.Fatalf("minute %d: %d byte-seconds, want %d", m, u.Amount[usage.Storage], want)
		}
	}
}
