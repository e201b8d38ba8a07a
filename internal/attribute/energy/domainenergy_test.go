package energy_test

import (
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

// TestSplit divides 100 W of a machine that draws 50 W idle and follows a known concave power
// model.
func TestSplit(t *testing.T) {
	c := energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 50 * watt}, {Load: 1e6, Power: 150 * watt}}}}
	r := newRig(c)
	a := &r.tick(second, 50).Domain[power.Rest]
	for _, tc := range []struct {
		by      energy.Rule
		weights []int64
		want    []int64
		left    int64
		low, up int64 // of the errors
	}{
		{energy.ByCPU, []int64{second}, []int64{50 * watt}, 0, 0, 1},
		{energy.ByCPU, []int64{second, second}, []int64{25 * watt, 25 * watt}, 0, watt, 5 * watt},
		{energy.ByCPU, []int64{0, 3 * second, second}, []int64{0, 37_500_000, 12_500_000}, 0, 0, 5 * watt},
		{energy.ByTraffic, []int64{7, 7}, []int64{25 * watt, 25 * watt}, 0, 0, 1},
		{energy.ByResident, []int64{1 << 30, 1 << 30}, []int64{25 * watt, 25 * watt}, 0, 6 * watt, 7 * watt},
		{energy.ByCPU, []int64{0, 0}, []int64{0, 0}, 50 * watt, 0, 0},
		{energy.ByCPU, nil, nil, 50 * watt, 0, 0},
	} {
		got, errors := make([]int64, len(tc.weights)), make([]int64, len(tc.weights))
		left := a.Split(tc.by, tc.weights, got, errors)
		if left != tc.left {
			t.Errorf("%v by rule %d leaves %d", tc.weights, tc.by, left)
		}
		for i := range got {
			if got[i] != tc.want[i] || errors[i] < tc.low || errors[i] > tc.up || got[i] == 0 && errors[i] != 0 {
				t.Errorf("%v by rule %d is %v +- %v, want %v", tc.weights, tc.by, got, errors, tc.want)
			}
		}
	}
}
