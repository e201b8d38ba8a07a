package external_test

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/power"
)

const (
	second = int64(time.Second)
	base   = 1000 // the first minute
)

var (
	watts   = external.Meter{Name: "w", Kind: power.Power, MaxPower: 1e12, Stale: 30 * time.Second}
	counter = external.Meter{Name: "c", Kind: power.Energy, MaxPower: 1000e6, Stale: 10 * time.Minute}
)

// at makes samples of a meter that is read from the first minute on: seconds, value,
// seconds, value, ...
func at(pairs ...int64) (s []external.Sample) {
	for i := 0; i < len(pairs); i += 2 {
		s = append(s, external.Sample{At: external.MinuteStart(base) + pairs[i]*second, Value: pairs[i+1]})
	}
	return s
}

// sampled are random samples that both kinds of meter can show, with gaps within
// limits.
func sampled(t *rapid.T, kind power.Kind, gap time.Duration) (s []external.Sample) {
	v, now := int64(0), external.MinuteStart(base)
	for range rapid.IntRange(2, 60).Draw(t, "samples") {
		s = append(s, external.Sample{At: now, Value: v})
		d := rapid.Int64Range(1, int64(gap)).Draw(t, "after")
		now += d
		if kind == power.Power {
			v = rapid.Int64Range(0, 1e12).Draw(t, "uW")
		} else {
			v += rapid.Int64Range(0, d/1000).Draw(t, "uJ") // 1000 W at most
		}
	}
	return s
}

// Minutes sum to what is between the samples, wherever the edges are, and no sample
// is needed that Since does not name.
func TestMinutesSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := watts
		if rapid.Bool().Draw(t, "counter") {
			m = counter
		}
		s := sampled(t, m.Kind, 25*time.Second)
		// It ends with a minute, so that the last edge cuts nothing.
		last := &s[len(s)-1]
		end := last.At/external.MinuteStart(1) + 1
		s = append(s, external.Sample{At: external.MinuteStart(end), Value: last.Value})
		if m.Kind == power.Power && s[len(s)-1].At-last.At > int64(m.Stale) {
			m.Stale = time.Minute
		}
		if m.Kind == power.Energy {
			s[len(s)-1].Value++ // a change shows that the counter has come there
		}
		now := time.Unix(0, s[len(s)-1].At)
		got := external.Minutes(&m, s, base, now)
		if int64(len(got)) != end-base {
			t.Fatalf("%d minutes, want %d", len(got), end-base)
		}
		sum, want := int64(0), s[len(s)-1].Value-s[0].Value
		if m.Kind == power.Power {
			want = 0
			for i := range s[1:] {
				want += trapezoid(s[i], s[i+1])
			}
		}
		for i, v := range got {
			if v.Minute != base+int64(i) || v.Reason != energy.OK || v.Energy < 0 || v.Error < 0 {
				t.Fatalf("minute %d: %+v", i, v)
			}
			sum += v.Energy
		}
		if sum != want {
			t.Fatalf("minutes sum to %d uJ, want %d", sum, want)
		}
		cut := base + int64(rapid.IntRange(0, len(got)-1).Draw(t, "from"))
		from := external.NeededFrom(&m, s, cut)
		for len(s) > 0 && s[0].At < from {
			s = s[1:]
		}
		if diff := cmp.Diff(got[cut-base:], external.Minutes(&m, s, cut, now)); diff != "" {
			t.Fatalf("without older samples:\n%s", diff)
		}
	})
}

func trapezoid(a, b external.Sample) int64 {
	e := new(big.Int).Mul(big.NewInt(a.Value+b.Value), big.NewInt(b.At-a.At))
	return e.Quo(e, big.NewInt(2*second)).Int64()
}

// A meter is judged as more samples come: what was decided is never changed.
func TestMinutesStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := counter
		m.Stale = time.Minute
		if rapid.Bool().Draw(t, "power") {
			m = watts
		}
		s := sampled(t, m.Kind, 2*time.Minute) // some gaps are too long
		for range rapid.IntRange(0, 3).Draw(t, "wrong") {
			s[rapid.IntRange(0, len(s)-1).Draw(t, "at")].Value = rapid.Int64Range(-5, 1e15).Draw(t, "value")
		}
		var before []external.MeterMinute
		for i := range s {
			now := s[i].At + rapid.Int64Range(0, 4*60*second).Draw(t, "late")
			if i+1 < len(s) {
				now = min(now, s[i+1].At-1)
			}
			got := external.Minutes(&m, s[:i+1], base, time.Unix(0, now))
			if len(got) < len(before) {
				t.Fatalf("%d minutes after %d", len(got), len(before))
			}
			same := func(a, b external.MeterMinute) bool { // that it cannot be used may get another reason
				return a == b || a.Minute == b.Minute && a.Reason != energy.OK && b.Reason != energy.OK
			}
			if !slices.EqualFunc(before, got[:len(before)], same) {
				t.Fatalf("sample %d changed what was decided:\n%s", i, cmp.Diff(before, got))
			}
			before = got
		}
	})
}

func TestMinutes(t *testing.T) {
	wrapping := counter
	wrapping.Wrap = 200_000e6
	classy := watts
	classy.ErrorPPM = 10_000
	type want = []external.MeterMinute
	twenty := func(v external.MeterMinute) (w want) {
		for v.Minute = base; len(w) < 20; v.Minute++ {
			w = append(w, v)
		}
		return w
	}
	for name, c := range map[string]struct {
		m       external.Meter
		samples []external.Sample
		now     int64 // s
		want    want
	}{
		"a constant":             {classy, at(-10, 100e6, 20, 100e6, 50, 100e6, 70, 100e6), 70, want{{base, 6000e6, 60e6, 0}}},
		"a ramp, cut":            {watts, at(0, 0, 30, 0, 60, 60e6), 60, want{{base, 900e6, 900e6, 0}}},
		"a ramp down":            {watts, at(0, 60e6, 30, 0, 60, 0), 60, want{{base, 900e6, 900e6, 0}}},
		"cut in a ramp":          {watts, at(0, 60e6, 30, 60e6, 50, 60e6, 70, 120e6), 70, want{{base, 50*60e6 + 10*75e6, 10 * 30e6, 0}}},
		"not yet":                {watts, at(0, 1e6, 30, 1e6), 59, nil},
		"no sample":              {watts, nil, 60, want{{base, 0, 0, energy.Unreadable}}},
		"it began late":          {watts, at(10, 1e6, 40, 1e6, 65, 1e6), 65, want{{base, 0, 0, energy.Unreadable}}},
		"a gap":                  {watts, at(0, 1e6, 10, 1e6, 45, 1e6, 70, 1e6, 100, 1e6, 120, 1e6), 120, want{{base, 0, 0, energy.Unreadable}, {base + 1, 60e6, 0, 0}}},
		"it fell silent":         {watts, at(0, 1e6, 30, 1e6, 60, 1e6, 80, 1e6), 121, want{{base, 60e6, 0, 0}, {base + 1, 0, 0, energy.Unreadable}}},
		"silent, not yet":        {watts, at(0, 1e6, 30, 1e6), 60, nil},
		"a gap after it":         {watts, at(0, 1e6, 30, 1e6, 60, 1e6, 120, 1e6), 120, want{{base, 60e6, 0, 0}, {base + 1, 0, 0, energy.Unreadable}}},
		"highest power":          {watts, at(0, 1e6, 20, 1e12, 40, 1e6, 60, 1e6), 60, want{{base, 20e12 + 40e6, 20e12 - 20e6, 0}}},
		"wrong for long":         {watts, at(0, 1e6, 20, 2e12, 40, 1e6, 60, 1e6), 60, want{{base, 0, 0, energy.Unreadable}}},
		"absurd power":           {watts, at(0, 1e6, 20, 2e12, 25, 1e6, 50, 1e6, 60, 1e6), 60, want{{base, 60e6, 0, 0}}},
		"a counter":              {counter, at(-30, 0, 30, 6000e6, 90, 9000e6), 90, want{{base, 4500e6, 0, 0}}},
		"coarse":                 {counter, at(0, 0, 40, 0, 80, 0, 120, 12000e6, 160, 12000e6), 160, want{{base, 6000e6, 0, 0}, {base + 1, 6000e6, 0, 0}}},
		"coarse, not yet":        {counter, at(0, 0, 40, 0, 80, 0, 120, 0), 120, nil},
		"first value":            {counter, at(100, 5), 100, want{{base, 0, 0, energy.Unreadable}}},
		"it stands":              {counter, at(0, 5, 300, 5, 600, 5), 600, want{{base, 0, 0, 0}, {base + 1, 0, 0, 0}, {base + 2, 0, 0, 0}, {base + 3, 0, 0, 0}, {base + 4, 0, 0, 0}, {base + 5, 0, 0, 0}, {base + 6, 0, 0, 0}, {base + 7, 0, 0, 0}, {base + 8, 0, 0, 0}, {base + 9, 0, 0, 0}}},
		"it wraps":               {wrapping, at(0, 199_000e6, 60, 2_000e6), 60, want{{base, 3_000e6, 0, 0}}},
		"at its wrap":            {wrapping, at(0, 199_000e6, 60, 200_000e6, 120, 2_000e6), 120, want{{base, 1_000e6, 0, 0}, {base + 1, 2_000e6, 0, 0}}},
		"above its wrap":         {wrapping, at(0, 199_000e6, 60, 200_000e6+1, 120, 2_000e6), 120, want{{base, 1_500e6, 0, 0}, {base + 1, 1_500e6, 0, 0}}},
		"it wraps twice":         {wrapping, at(0, 199_000e6, 300, 2_000e6, 360, 3_000e6), 360, want{{base, 0, 0, energy.Ambiguous}, {base + 1, 0, 0, energy.Ambiguous}, {base + 2, 0, 0, energy.Ambiguous}, {base + 3, 0, 0, energy.Ambiguous}, {base + 4, 0, 0, energy.Ambiguous}, {base + 5, 1_000e6, 0, 0}}},
		"one wrong value":        {counter, at(0, 100e6, 20, 9e15, 60, 160e6), 60, want{{base, 60e6, 0, 0}}},
		"one back":               {counter, at(0, 100e6, 20, 0, 60, 160e6), 60, want{{base, 60e6, 0, 0}}},
		"wrong and again":        {counter, at(0, 100e6, 20, 9e15, 40, 100e6, 50, 9e15+1, 60, 160e6), 60, want{{base, 60e6, 0, 0}}},
		"it restarted":           {counter, at(0, 100_000e6, 50, 3e6, 60, 4e6, 120, 10e6), 120, want{{base, 0, 0, energy.WentBack}, {base + 1, 6e6, 0, 0}}},
		"it jumped":              {counter, at(0, 0, 50, 1e15, 60, 1e15+1e6, 120, 1e15+7e6), 120, want{{base, 0, 0, energy.Jumped}, {base + 1, 6e6, 0, 0}}},
		"restarted, then stood":  {counter, at(0, 100_000e6, 50, 3e6, 60, 3e6, 120, 10e6), 120, want{{base, 0, 0, energy.WentBack}, {base + 1, 6e6, 0, 0}}},
		"restarted, then slowed": {counter, at(0, 100_000e6, 50, 3e6, 60, 8e6, 120, 10e6), 120, want{{base, 0, 0, energy.WentBack}, {base + 1, 2e6, 0, 0}}},
		// It makes sense again after twice the time that it may stand still, and a second later.
		"right in time":  {counter, at(0, 1000e6, 300, 1e15, 600, 5, 900, 1e15, 1200, 1020e6), 1200, twenty(external.MeterMinute{Energy: 1e6})},
		"right but late": {counter, at(0, 1000e6, 300, 1e15, 600, 5, 900, 1e15, 1201, 1020e6), 1201, twenty(external.MeterMinute{Reason: energy.Unreadable})},
		// Each value is impossible after the previous value, until no value can count for the first 300 s.
		"it makes no sense": {counter, at(0, 1000e6, 300, 1e15, 600, 5, 900, 1e15, 1200, 6, 1500, 1e15), 1500, want{{base, 0, 0, energy.Unreadable}, {base + 1, 0, 0, energy.Unreadable}, {base + 2, 0, 0, energy.Unreadable}, {base + 3, 0, 0, energy.Unreadable}, {base + 4, 0, 0, energy.Unreadable}}},
		"away for an hour":  {counter, at(0, 0, 60, 1e6, 3600, 70e6, 3660, 71e6), 180, want{{base, 1e6, 0, 0}}},
	} {
		var s []external.Sample
		for _, x := range c.samples {
			if x.At <= external.MinuteStart(base)+c.now*second {
				s = append(s, x)
			}
		}
		if diff := cmp.Diff(c.want, external.Minutes(&c.m, s, base, time.Unix(0, external.MinuteStart(base)+c.now*second))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestNeededFrom checks from when on samples are kept: the latest one that is used up to the minute.
func TestNeededFrom(t *testing.T) {
	samples := at(-10, 1e6, 20, 1e6, 60, 1e6, 70, 1e6)
	for _, c := range []struct {
		samples []external.Sample
		from    int64 // minutes after base
		want    int64 // s after base
	}{{samples, 0, -10}, {samples, 1, 60}, {samples, 2, 70}, {nil, 1, 60}, {at(30, 1e6), 0, 0}, {at(30, 1e6), 1, 30}} {
		if got := external.NeededFrom(&watts, c.samples, base+c.from) - external.MinuteStart(base); got != c.want*second {
			t.Errorf("from minute %d of %d samples: %d ns, want %d s", c.from, len(c.samples), got, c.want)
		}
	}
}

func TestGroupConnected(t *testing.T) {
	of := func(nodes ...[]string) (ms []external.Meter) {
		for _, n := range nodes {
			ms = append(ms, external.Meter{Nodes: n})
		}
		return ms
	}
	id := func(s string) string {
		return map[string]string{"A": "a"}[s] + map[bool]string{true: "", false: s}[s == "A"]
	}
	for _, c := range []struct {
		meters []external.Meter
		want   [][]int
	}{
		{nil, nil},
		{of([]string{"a"}, []string{"b"}, []string{"A"}), [][]int{{1}, {0, 2}}},
		{of([]string{"a"}, []string{"b"}, []string{"c"}, []string{"c", "a"}, []string{"d", "b"}), [][]int{{0, 2, 3}, {1, 4}}},
		{of([]string{"a", "b"}, []string{"b", "a"}, []string{"a", "b"}), [][]int{{0, 1, 2}}},
	} {
		if diff := cmp.Diff(c.want, external.GroupConnected(c.meters, id)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.meters, diff)
		}
	}
}
