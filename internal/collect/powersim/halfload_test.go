package powersim_test

import (
	"math"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/model/power"
)

// TestHalfLoadFromStart books a workload that uses half of the CPUs from the start, beside little
// else. Within the first minute its energy is within its error, which is at most 30 % with the
// curve of its CPU, and less once the load has changed.
func TestHalfLoadFromStart(t *testing.T) {
	const cpus, tick = 64, int64(1e9)
	curve, _ := energy.LookupCurve("AMD EPYC 7763 64-Core Processor", cpus)
	for name, model := range map[string]powersim.PowerModel{
		"linear":      {Idle: 40 * watt, Core: 2 * watt, Exponent: 1, Noise: .03},
		"concave":     {Idle: 50 * watt, Core: 7 * watt, Exponent: .7, Noise: .03},
		"convex":      {Idle: 50 * watt, Core: watt, Exponent: 1.2, Noise: .03},
		"deep sleep":  {Idle: 20 * watt, Core: 2 * watt, Exponent: 1, Noise: .03},
		"power at 30": {Idle: 60 * watt, Core: 3 * watt, Exponent: .9, Noise: .1},
	} {
		measure := func(curve power.Curve) (off, width [3]float64) {
			zones := []powersim.Zone{{ID: "intel-rapl:0", Name: "package-0", Domain: power.Package, Model: model}}
			m, err := powersim.NewMachine(zones, nil, 1, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			meter := power.Meter{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Step: 1, Every: 1e6, ErrorPPM: 50_000}
			meters := energy.New(energy.Config{Meters: []power.Meter{meter}, Curve: curve})
			at := int64(0)
			step := func(cores float64) (booked, booksOff, truth float64) {
				was := m.Record().Active[0][power.Package]
				for range tick / slice {
					at += slice
					used := int64(cores * float64(slice))
					m.Step(at, []int64{used}, used+slice/4)
				}
				value, _ := m.Value(0)
				weights, parts, errors := []int64{int64(cores * 1e9), tick / 4}, make([]int64, 2), make([]int64, 2)
				iv := energy.Interval{At: at, Elapsed: tick, Load: (weights[0] + weights[1]) / cpus / 1000, CPUs: cpus}
				d := meters.Tick(iv, []power.Reading{{At: at, Value: value}}, nil).Domain[power.Package]
				if left := d.Split(energy.ByCPU, weights, parts, errors); d.Idle+left+parts[0]+parts[1] != d.Energy || d.Idle > d.Energy {
					t.Fatalf("%s: %d + %d + %v is not %d", name, d.Idle, left, parts, d.Energy)
				}
				return float64(parts[0]), float64(errors[0]), float64(m.Record().Active[0][power.Package] - was)
			}
			meters.Tick(energy.Interval{CPUs: cpus}, []power.Reading{{}}, nil)
			for i, between := range []float64{0, .12, 0} { // nothing, then a lower load, then none
				if i > 0 {
					for range 10 {
						step(between * cpus)
					}
				}
				var booked, booksOff, truth float64
				for range 60 {
					b, o, w := step(cpus / 2)
					booked, booksOff, truth = booked+b, booksOff+o, truth+w
				}
				off[i], width[i] = math.Abs(booked-truth)/truth, booksOff/booked
				if math.Abs(booked-truth) > booksOff {
					t.Errorf("%s, stage %d: %.0f J +- %.0f, true %.0f", name, i, booked/1e6, booksOff/1e6, truth/1e6)
				}
			}
			return off, width
		}
		before, wide := measure(power.Curve{})
		off, width := measure(curve)
		t.Logf("%-12s without a curve off by %.0f %% +-%.0f %%; with it off by %.0f, %.0f, %.0f %% +-%.0f, %.0f, %.0f %%", name,
			100*before[0], 100*wide[0], 100*off[0], 100*off[1], 100*off[2], 100*width[0], 100*width[1], 100*width[2])
		if width[0] > .3 || width[1] > width[0] || width[2] > width[1] {
			t.Errorf("%s: errors of %.3f, which are to shrink from 0.3", name, width)
		}
	}
}
