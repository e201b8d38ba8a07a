package energy_test

import (
	"math"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

// TestModelAlone uses curves on machines outside the table whose power models differ from it: the
// energy of each of 20 loads, of idle and in total must be within its error in windows of ten
// seconds.
func TestModelAlone(t *testing.T) {
	for _, tc := range []struct {
		cpu        string // as in /proc/cpuinfo
		threads    int
		idle, full float64 // W, of testdata/specpower.txt
		exponent   float64
	}{
		// Entries 8, 478, 73 and 435 of the list; the second has high idle power.
		{"AMD EPYC-Rome Processor", 128, 56.4, 206, .7},
		{"AMD EPYC-Rome Processor", 256, 163, 423, .8},
		{"Intel Xeon Processor (SandyBridge)", 32, 72.4, 258, 1},
		{"AMD EPYC", 192, 72.5, 381, 1.2},
	} {
		curve, _ := energy.LookupCurve(tc.cpu, tc.threads)
		meters := energy.New(energy.Config{Curve: curve})
		in, count := 0, 0
		for seed := range uint64(3) {
			w := newWorld(model{idle: tc.idle, active: concave(tc.full-tc.idle, tc.exponent)}, tc.threads, seed)
			n := len(w.loads)
			weights, parts, errors, used := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
			truth, rows := make([]float64, n), make([]result, n)
			var idle, all result
			idleWas, allWas := 0.0, int64(0)
			for s := range quiet + 60 {
				for range 50 {
					w.step()
				}
				for i, u := range w.used {
					weights[i] = u - used[i]
				}
				copy(used, w.used)
				tick := meters.Tick(energy.Interval{At: w.nanoseconds(), Elapsed: second, Load: sum(weights) / int64(w.cpus) / 1000, CPUs: w.cpus}, nil, nil)
				a := &tick.Domain[power.Rest]
				left := a.Split(energy.ByCPU, weights, parts, errors)
				for i := range rows {
					rows[i].add(result{float64(parts[i]), float64(errors[i]), w.truth[i] - truth[i]})
				}
				idle.add(result{float64(a.Idle + left), float64(a.IdleError), w.idle - idleWas})
				all.add(result{float64(a.Energy), float64(a.Error), float64(w.energy - allWas)})
				copy(truth, w.truth)
				idleWas, allWas = w.idle, w.energy
				if s%10 != 9 {
					continue
				}
				if !idle.covered() || !all.covered() {
					t.Errorf("%s, seed %d, to %d s: idle %.0f J +- %.0f, true %.0f; total %.0f +- %.0f, true %.0f", curve.Source, seed, s+1,
						idle.booked/1e6, idle.error/1e6, idle.truth/1e6, all.booked/1e6, all.error/1e6, all.truth/1e6)
				}
				for _, r := range rows {
					if count++; math.Abs(r.booked-r.truth) <= r.error {
						in++
					}
				}
				clear(rows)
				idle, all = result{}, result{}
			}
		}
		share := float64(in) / float64(count)
		t.Logf("%s: of %d windows of loads %.1f %% are within their error", curve.Source, count, 100*share)
		if share < .95 {
			t.Errorf("%s: %.3f of the windows are within their error, want 0.95", curve.Source, share)
		}
	}
}

// TestCurveCPUs checks that a curve is scaled to the CPUs that are online, if it says for how many it is.
func TestCurveCPUs(t *testing.T) {
	for _, c := range []struct {
		threads, cpus int
		power, idle   int64 // W
	}{{4, 4, 90, 40}, {4, 8, 180, 80}, {4, 1, 22, 10}, {0, 8, 90, 40}, {4, 0, 90, 40}} {
		m := energy.New(energy.Config{Curve: power.Curve{Domain: power.Rest, Threads: c.threads, Points: []power.Point{{Load: 0, Power: 40 * watt}, {Load: power.PPM, Power: 140 * watt}}}})
		for i, cpus := range []int{2, 4, c.cpus} { // the number before does not matter
			m.Tick(energy.Interval{At: int64(i) * 2 * second, Elapsed: 2 * second, Load: power.PPM / 2, CPUs: cpus}, nil, nil)
		}
		d := m.Latest().Domain[power.Rest]
		if d.Energy/watt/2 != c.power || d.Idle/watt/2 != c.idle {
			t.Errorf("%+v: %d uJ in 2 s, %d of them idle", c, d.Energy, d.Idle)
		}
	}
}
