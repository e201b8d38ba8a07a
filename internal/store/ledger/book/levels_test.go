package book

import (
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
