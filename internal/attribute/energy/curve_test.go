package energy_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

func TestCurveAt(t *testing.T) {
	c := power.Curve{Points: []power.Point{{Load: 100_000, Power: 10}, {Load: 200_000, Power: 30}, {Load: 300_000, Power: 20}}}
	for load, want := range map[int64]int64{0: 10, 100_000: 10, 150_000: 20, 200_000: 30, 250_000: 25, 300_000: 20, 1_000_000: 20} {
		if got := energy.CurvePower(&c, load); got != want {
			t.Errorf("at %d it is %d, want %d", load, got, want)
		}
	}
	if got := energy.CurvePower(&power.Curve{}, 5); got != 0 {
		t.Errorf("without points: %d", got)
	}
}

func TestScaleCurve(t *testing.T) {
	c := power.Curve{Threads: 64, Points: []power.Point{{Load: 0, Power: 64e6}}, Source: "a table"}
	small := energy.ScaleCurve(c, 4)
	if small.Points[0].Power != 4e6 || small.Threads != 4 || small.Source != "a table, scaled from 64 to 4 threads" {
		t.Errorf("4 of 64 threads: %+v", small)
	}
	if c.Points[0].Power != 64e6 {
		t.Error("the argument was changed")
	}
	for _, same := range []power.Curve{energy.ScaleCurve(power.Curve{Points: c.Points}, 4), energy.ScaleCurve(c, 64), energy.ScaleCurve(c, 0), energy.ScaleCurve(c, -1)} {
		if same.Points[0].Power != 64e6 || strings.Contains(same.Source, "scaled") {
			t.Errorf("a curve of the same or of unknown size was scaled: %+v", same)
		}
	}
	if one := energy.ScaleCurve(c, 1); one.Points[0].Power != 1e6 || one.Threads != 1 {
		t.Errorf("1 of 64 threads: %+v", one)
	}
	if c.Threads = 1; energy.ScaleCurve(c, 2).Points[0].Power != 128e6 {
		t.Errorf("twice as many threads: %+v", energy.ScaleCurve(c, 2))
	}
}

// powerModels are the power in W by load of test machines; FitCurve can describe the first three
// exactly.
var powerModels = map[string]func(float64) float64{
	"linear":    func(u float64) float64 { return 50 + 100*u },
	"concave":   func(u float64) float64 { return 50 + 100*math.Pow(u, .7) },
	"steep":     func(u float64) float64 { return 80 + 300*math.Pow(u, .6) },
	"turbo":     func(u float64) float64 { return 40 + 60*u + 50*max(0, u-.5) },
	"two steps": func(u float64) float64 { return 60 + 70*min(u, .5) + 30*max(0, u-.5) },
	"wakes up":  func(u float64) float64 { return 40 + 30*min(1, u/.05) + 80*u },
}

// TestFitCurve calibrates with loads in steps of a tenth and ten samples at each, by a meter with
// 0.5 % noise.
func TestFitCurve(t *testing.T) {
	for name, powerAt := range powerModels {
		r := rand.New(rand.NewPCG(1, 1))
		var samples []energy.Sample
		for step := range 11 {
			for range 10 {
				load := min(1, max(0, float64(step)/10+.002*r.NormFloat64()))
				samples = append(samples, energy.Sample{Load: int64(load * 1e6), Power: int64(powerAt(load) * 1e6 * (1 + .005*r.NormFloat64()))})
			}
		}
		c, residual := energy.FitCurve(power.Package, samples)
		worst, at := 0.0, 0.0
		for load := 0.0; load <= 1; load += .01 {
			off := math.Abs(float64(energy.CurvePower(&c, int64(load*1e6)))/1e6-powerAt(load)) / powerAt(load)
			if off > worst {
				worst, at = off, load
			}
		}
		limit := .03
		switch name {
		case "linear", "concave":
			limit = .01
		case "wakes up":
			limit = .15 // the whole rise is between two steps
		}
		t.Logf("%-9s off by %.2f %% at most, at a load of %.2f; residual %.2f %%", name, worst*100, at, float64(residual)/1e4)
		if worst > limit || residual < 3_000 || residual > 12_000 {
			t.Errorf("%s: off by %.3f at a load of %.2f, residual %d ppm", name, worst, at, residual)
		}
		for i := 1; i < len(c.Points); i++ {
			if c.Points[i].Power < c.Points[i-1].Power {
				t.Errorf("%s: the curve falls at %d", name, c.Points[i].Load)
			}
		}
		for i, percent := range []float64{0, .25, .5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100} {
			if c.Points[i].Load != int64(percent*1e4) {
				t.Errorf("%s: point %d is at %d ppm, want %v %%", name, i, c.Points[i].Load, percent)
			}
		}
	}
	if c, residual := energy.FitCurve(power.Package, nil); len(c.Points) != 0 || residual != 0 {
		t.Errorf("without samples: %+v", c)
	}
}

// TestPowerModelKnowsItsError trains a model with a part of the loads and checks that its power at
// all loads is within its stated error.
func TestPowerModelKnowsItsError(t *testing.T) {
	inside, count := 0, 0
	for name, powerAt := range powerModels {
		for _, span := range [][2]float64{{0, 1}, {0, .5}, {.3, .8}, {.5, .52}, {.002, .004}, {.9, 1}} {
			for seed := range uint64(10) {
				r := rand.New(rand.NewPCG(seed, 1))
				var pm energy.PowerModel
				for range 30 + 60*seed {
					u := span[0] + (span[1]-span[0])*r.Float64()
					pm.Add(u, powerAt(u)*1e6*(1+.01*r.NormFloat64()))
				}
				static, off := pm.Static()
				miss := 0
				if math.Abs(static-powerAt(0)*1e6) > off {
					miss++
				}
				for _, u := range []float64{.05, .3, .6, 1} {
					p, off := pm.Power(u)
					if math.Abs(p-powerAt(u)*1e6) > off {
						miss++
					}
				}
				count += 5
				inside += 5 - miss
				if miss > 0 {
					t.Logf("%s, loads of %.3f to %.3f, seed %d: %d of 5 outside; static %.1f +- %.1f (%.1f)", name, span[0], span[1], seed, miss, static/1e6, off/1e6, powerAt(0))
				}
			}
		}
	}
	if share := float64(inside) / float64(count); share < .95 {
		t.Errorf("%.3f of the powers are within their error", share)
	}
}

// TestPowerModelOfOneLoad checks that a model that knows one load only gives the power there, and at
// other loads one between that and ten times as much, whichever load it is.
func TestPowerModelOfOneLoad(t *testing.T) {
	for _, load := range []float64{.003, .008, .015, .025, .04, .06, .09, .12, .17, .22, .27, .32, .37, .42, .47, .52, .57, .62, .67, .72, .77, .82, .87, .92, .98} {
		var pm energy.PowerModel
		for range 10 {
			pm.Add(load, 100e6)
		}
		if p, off := pm.Power(load); math.Abs(p-100e6) > 1e6 || off > 5e6 {
			t.Errorf("at %.3f, where 100 W were measured, %.1f +- %.1f W", load, p/1e6, off/1e6)
		}
		if p, off := pm.Power(1); p < 100e6 || p > 1000e6 || off < p-100e6-1e6 {
			t.Errorf("at full load %.1f +- %.1f W, while 100 W were measured at %.3f only", p/1e6, off/1e6, load)
		}
	}
}

// TestPowerModelBetweenLoads checks that between two known loads, whichever they are, the power is
// as certain as a straight line allows.
func TestPowerModelBetweenLoads(t *testing.T) {
	for _, loads := range [][]float64{{.008, .22, .42, .62, .82}, {.003, .17, .37, .57, .77}} {
		var pm energy.PowerModel
		for range 60 {
			for _, u := range loads {
				pm.Add(u, 50e6+100e6*u)
			}
		}
		for _, u := range []float64{.1, .3, .5, .7} {
			if p, off := pm.Power(u); math.Abs(p-50e6-100e6*u) > .5e6 || off > 1e6 {
				t.Errorf("of loads %v: %.2f +- %.2f W at %.2f, want %.2f +- 1 or less", loads, p/1e6, off/1e6, u, 50+100*u)
			}
		}
	}
}

// TestPowerModelFollows checks that a model follows a permanent change, and ignores an outlier.
func TestPowerModelFollows(t *testing.T) {
	var pm energy.PowerModel
	add := func(n int, static float64) {
		for i := range n {
			u := float64(i%20) / 20
			pm.Add(u, static+100e6*u)
		}
	}
	add(200, 50e6)
	pm.Add(.3, 5000e6)
	if static, _ := pm.Static(); math.Abs(static-50e6) > .5e6 {
		t.Errorf("after an outlier static is %.2f W", static/1e6)
	}
	add(30_000, 70e6)
	if static, _ := pm.Static(); math.Abs(static-70e6) > 1e6 {
		t.Errorf("the machine draws 70 W for hours now, the model says %.2f W", static/1e6)
	}
}
