package calibrate

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
)

func TestSteadySamples(t *testing.T) {
	for name, c := range map[string]struct{ loads, want []int64 }{
		"nothing":             {nil, nil},
		"two":                 {[]int64{0, 900_000}, []int64{0, 900_000}},
		"calm":                {[]int64{21_000, 25_000, 20_000, 29_000}, []int64{21_000, 25_000, 20_000, 29_000}},
		"a burst":             {[]int64{75_000, 27_000, 25_500, 22_800, 29_200}, []int64{27_000, 25_500, 22_800, 29_200}},
		"a burst of idleness": {[]int64{1_000_000, 999_000, 700_000, 998_000}, []int64{1_000_000, 999_000, 998_000}},
		"never steady":        {[]int64{100_000, 200_000, 300_000, 400_000, 500_000}, []int64{200_000, 300_000, 400_000}},
	} {
		t.Run(name, func(t *testing.T) {
			var list []energy.Sample
			for _, l := range c.loads {
				list = append(list, energy.Sample{Load: l, Power: 2 * l})
			}
			var got []int64
			for _, s := range steadySamples(list) {
				if s.Power != 2*s.Load {
					t.Errorf("%+v is not one of the samples", s)
				}
				got = append(got, s.Load)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
