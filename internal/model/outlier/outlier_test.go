package outlier_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/outlier"
)

// normal returns values of a normal distribution around 1.
func normal(r *rand.Rand, n int, spread float64) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = 1 + spread*r.NormFloat64()
	}
	return s
}

// rate returns how many of some new observations, multiplied by a factor, are marked.
func rate(r *rand.Rand, tries, n int, spread, factor float64) float64 {
	marked := 0
	for range tries {
		if got, ok := outlier.Compare(factor*normal(r, 1, spread)[0], normal(r, n, spread)); ok && got.Marked {
			marked++
		}
	}
	return float64(marked) / float64(tries)
}

// Without a change at most one in a hundred is marked, whatever the size of the sample; and not much
// fewer, so the limits are not simply large. A spread of 1 % of the median hides behind the smallest
// change, one of 20 % does not. 30,000 tries have a standard error of 0.06 %.
func TestFalseRate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := outlier.MinSample; n <= outlier.MaxSample; n++ {
		if got := rate(r, 30_000, n, 0.2, 1); got > outlier.FalseRate+0.0025 || got < outlier.FalseRate-0.0035 {
			t.Errorf("%d values: %.2f %% are marked without a change", n, 100*got)
		}
		if got := rate(r, 1000, n, 0.01, 1); got > 0.002 {
			t.Errorf("%d values of 1 %% spread: %.2f %% are marked without a change", n, 100*got)
		}
	}
}

// A change by 40 % at a spread of 5 % is found, up or down: always from 12 runs on, mostly from 8 on.
func TestChangeIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n, least := range map[int]float64{8: 0.6, 12: 0.9, 16: 0.97, 20: 0.99} {
		for _, factor := range []float64{1.4, 0.6} {
			if got := rate(r, 4000, n, 0.05, factor); got < least {
				t.Errorf("%d values: a factor of %v is found in %.1f %% of cases, want %.0f %%", n, factor, 100*got, 100*least)
			}
		}
	}
}

// The result does not depend on the unit or on the order, and up to half of the sample may be anything.
func TestCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SliceOfN(rapid.Float64Range(0.5, 2), outlier.MinSample, outlier.MaxSample+5).Draw(t, "sample")
		x := rapid.Float64Range(0.1, 9).Draw(t, "x")
		want, ok := outlier.Compare(x, s)
		if !ok || want.Sample != min(len(s), outlier.MaxSample) || want.Marked && math.Abs(want.Change) < outlier.MinChange || math.Signbit(want.Score) != (x < want.Median) {
			t.Fatalf("%+v, %v", want, ok)
		}
		kept := slices.Clone(s[:want.Sample])
		slices.Reverse(kept)
		unit := rapid.SampledFrom([]float64{1024, 1.0 / 4096}).Draw(t, "unit")
		for i := range kept {
			kept[i] *= unit
		}
		got, _ := outlier.Compare(x*unit, kept)
		if got.Median /= unit; got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
	nine := []float64{1, 1.01, 0.99, 1.02, 0.98, 1, 1e9, 1e9, 1e9}
	if got, _ := outlier.Compare(1.5, nine); !got.Marked || got.Median != 1.01 {
		t.Errorf("with three outliers in nine: %+v", got)
	}
	equal := []float64{5, 5, 5, 5, 5, 5}
	for x, marked := range map[float64]bool{5: false, 5.05: false, 5.4: false, 5.6: true, 4.4: true, 0: true} {
		if got, ok := outlier.Compare(x, equal); !ok || got.Marked != marked {
			t.Errorf("%v after equal values: %+v", x, got)
		}
	}
	if got, ok := outlier.Compare(1, make([]float64, 6)); !ok || !got.Marked || !math.IsInf(got.Change, 1) {
		t.Errorf("something after nothing: %+v", got)
	}
	if got, ok := outlier.Compare(0, make([]float64, 6)); !ok || got.Marked || got.Score != 0 {
		t.Errorf("nothing after nothing: %+v", got)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		if _, ok := outlier.Compare(bad, equal); ok {
			t.Errorf("%v is compared", bad)
		}
		if _, ok := outlier.Compare(5, []float64{1, 1, 1, 1, bad}); ok {
			t.Errorf("%v in a sample is compared", bad)
		}
	}
	if _, ok := outlier.Compare(1, equal[:outlier.MinSample-1]); ok {
		t.Error("a sample of four is compared")
	}
}
