package energy_test

import (
	"math"
	"slices"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/othertools"
)

// A result is the energy booked to a workload and its true energy, in uJ.
type result struct{ booked, error, truth float64 }

func (r *result) add(o result) {
	r.booked += o.booked
	r.error += o.error
	r.truth += o.truth
}

func (r result) relativeError() float64 { return math.Abs(r.booked-r.truth) / r.truth }
func (r result) width() float64         { return r.error / r.booked }
func (r result) covered() bool          { return math.Abs(r.booked-r.truth) <= r.error }

// quiet is the warm-up in seconds: two seconds idle, then the loads start one by one.
const quiet = 20

// measure simulates a machine for quiet seconds and a minute more, and returns what each workload
// was booked in each ten-second window of that minute.
func measure(t *testing.T, w *world) (windows [][]result) {
	m := power.Meter{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy,
		From: power.Powercap, Wrap: w.wrap, Step: 61, Every: 1_000_000, ErrorPPM: 10_000}
	meters := energy.New(energy.Config{Meters: []power.Meter{m}})
	n := len(w.loads)
	weights, shares, errors, used := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	truth := make([]float64, n)
	rows := make([]result, n)
	meters.Tick(energy.Interval{At: w.nanoseconds(), CPUs: w.cpus}, w.read(), nil)
	for s := range quiet + 60 {
		for range 50 {
			w.step()
		}
		for i, u := range w.used {
			weights[i] = u - used[i]
		}
		copy(used, w.used)
		tick := meters.Tick(energy.Interval{At: w.nanoseconds(), Elapsed: 1e9, Load: sum(weights) / int64(w.cpus) / 1000, CPUs: w.cpus}, w.read(), nil)
		a := &tick.Domain[power.Package]
		left := a.Split(energy.ByCPU, weights, shares, errors)
		for i := range rows {
			rows[i].add(result{float64(shares[i]), float64(errors[i]), w.truth[i] - truth[i]})
			left += shares[i]
		}
		if left+a.Idle != a.Energy {
			t.Fatalf("%s: %d uJ divided into %d", w.name, a.Energy, left+a.Idle)
		}
		copy(truth, w.truth)
		if s < quiet || (s-quiet)%10 == 9 {
			if s >= quiet {
				windows = append(windows, slices.Clone(rows))
			}
			clear(rows)
		}
	}
	return windows
}

// TestBands compares energies and their errors with the truth of a simulator: 20 changing loads,
// for a minute, on machines of 2, 8 and 64 CPUs with several power models.
func TestBands(t *testing.T) {
	stall := func(second int) bool { return second%40 >= 25 && second%40 < 32 }
	for _, tc := range []struct {
		model
		width     float64 // maximum of the median
		mean, max float64 // maximum error of a workload over the minute; 0 is any
	}{
		{model{name: "linear", active: linear(100)}, .02, .002, .01},
		{model{name: "late", active: linear(100), late: true}, .05, .02, .05},
		{model{name: "wrapping", active: linear(100), wrap: 3_000_000_000}, .02, .002, .01},
		{model{name: "stalling", active: linear(100), stall: stall}, .02, .02, .05},
		{model{name: "stalling, and losing that", active: linear(100), stall: stall, lost: true}, .02, .02, .05},
		{model{name: "noisy", active: linear(100), noise: .05}, .05, .02, .05},
		{model{name: "concave", active: concave(100, .7)}, .15, 0, 0},
		{model{name: "concave, late and noisy", active: concave(100, .7), late: true, noise: .03}, .15, 0, 0},
		{model{name: "steeply concave", active: concave(100, .5)}, .25, 0, 0},
		{model{name: "linear, never idle", active: linear(100), busy: true}, .3, .02, .05},
		{model{name: "concave, never idle", active: concave(100, .7), busy: true}, .6, 0, 0},
		{model{name: "convex", active: concave(100, 1.2)}, .15, 0, 0},
	} {
		tc.idle = 50
		var offs, widths, whole []float64
		covered := 0
		for seed := range uint64(9) {
			w := newWorld(tc.model, []int{2, 8, 64}[seed%3], seed)
			minute := make([]result, len(w.loads))
			for _, rows := range measure(t, w) {
				for i, r := range rows {
					if r.truth == 0 && r.booked == 0 {
						continue
					}
					offs, widths = append(offs, r.relativeError()), append(widths, r.width())
					if r.covered() {
						covered++
					}
					minute[i].add(r)
				}
			}
			for _, r := range minute {
				whole = append(whole, r.relativeError())
			}
		}
		slices.Sort(widths)
		slices.Sort(offs)
		width, share, mean, most := widths[len(widths)/2], float64(covered)/float64(len(widths)), average(whole), slices.Max(whole)
		t.Logf("%-25s %d windows: band covers %.1f %%, is %.1f %% wide; off by %.1f %% (median), %.1f %% (95 of 100); in a minute by %.2f %% (mean), %.2f %% (most)",
			tc.name, len(widths), 100*share, 100*width, 100*offs[len(offs)/2], 100*offs[len(offs)*95/100], 100*mean, 100*most)
		if len(widths) < 1000 || share < .95 || width > tc.width {
			t.Errorf("%s: of %d windows the band covers %.3f and is %.3f wide, want 1000, 0.95 and no more than %.3f", tc.name, len(widths), share, width, tc.width)
		}
		if tc.max > 0 && (mean > tc.mean || most > tc.max) {
			t.Errorf("%s: off by %.4f on average and %.4f at most, want %.4f and %.4f", tc.name, mean, most, tc.mean, tc.max)
		}
	}
}

func average(v []float64) float64 { return sum(v) / float64(len(v)) }

func sum[T int64 | float64](v []T) (s T) {
	for _, x := range v {
		s += x
	}
	return s
}

// TestPeers compares with the published methods of other tools on the same minute. Their notions of
// active energy differ, so what they divide is scaled to the truth first; what remains is the error
// of the division.
func TestPeers(t *testing.T) {
	var own, kepler, scaphandre []float64
	var joules, cpu float64 // shares of the loads of short processes, by Kepler's and in truth
	for seed := range uint64(3) {
		m := model{name: "linear", idle: 50, active: linear(100)}
		w := newWorld(m, 8, seed)
		minute := make([]result, len(w.loads))
		for _, rows := range measure(t, w) {
			for i, r := range rows {
				minute[i].add(r)
			}
		}
		for _, r := range minute {
			own = append(own, r.relativeError())
		}
		ks, ss, w := scan(m, seed)
		active := sum(w.truth)
		for i := range w.loads {
			k, s := float64(ks[i])/float64(sum(ks)), float64(ss[i])/float64(sum(ss))
			kepler = append(kepler, math.Abs(k*active-w.truth[i])/w.truth[i])
			scaphandre = append(scaphandre, math.Abs(s*active-w.truth[i])/w.truth[i])
			if i%4 == 3 {
				joules += k / 3
				cpu += float64(w.used[i]) / float64(sum(w.used)) / 3
			}
		}
	}
	t.Logf("mean error over a minute: mete %.2f %%, Kepler's method %.1f %%, Scaphandre's %.1f %%; Kepler's gives to loads of short processes %.2f %% of the active energy for %.1f %% of the CPU time",
		100*average(own), 100*average(kepler), 100*average(scaphandre), 100*joules, 100*cpu)
	if average(own) > .02 || average(kepler) < .1 || average(scaphandre) < .1 {
		t.Errorf("mean errors %.3f, %.3f and %.3f", average(own), average(kepler), average(scaphandre))
	}
	if joules > cpu/3 {
		t.Errorf("Kepler's method gives %.3f of the energy to short processes, which used %.3f of the CPU", joules, cpu)
	}
}

// scan runs both methods on a simulated machine, every five and every seven seconds for 70 seconds.
// Scaphandre reads energy and then, for 100 ms, processes.
func scan(m model, seed uint64) (kepler, scaphandre []int64, w *world) {
	w = newWorld(m, 8, seed)
	w.processes = map[int]othertools.Process{}
	kepler, scaphandre = make([]int64, len(w.loads)), make([]int64, len(w.loads))
	k, s := w.scan(), w.scan()
	read := s.Energy
	for i := 1; i <= 70*50; i++ {
		w.step()
		if i%250 == 0 {
			now := w.scan()
			othertools.Kepler(k, now, kepler)
			k = now
		}
		switch i % 350 {
		case 345:
			read = w.shown
		case 0:
			now := w.scan()
			now.Energy = read
			othertools.Scaphandre(s, now, scaphandre)
			s = now
		}
	}
	return kepler, scaphandre, w
}
