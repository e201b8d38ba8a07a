package energy

import (
	"math"
	"testing"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestDomainEnergy checks how energy is divided into idle and active, and the errors of both, by hand:
// with an untrained model, idle is half of the energy, and off by that; idle power that is given is exact.
func TestDomainEnergy(t *testing.T) {
	curve := power.Curve{Domain: power.Rest, ErrorPPM: 100_000, IdleErrorPPM: 300_000, Points: []power.Point{{Load: 0, Power: 40}, {Load: power.PPM, Power: 140}}}
	te := tickEnergy{energy: 100, classError: 10, otherError: 3, quality: usage.Measured, misaligned: true}
	for _, c := range []struct {
		name   string
		te     tickEnergy
		change func(te *tickEnergy, iv *Interval)
		static int64
		curve  bool
		want   [5]int64 // energy, idle, the errors of both and of active
	}{
		{"untrained", te, nil, 0, false, [5]int64{100, 50, 11, 51, 51}}, // 5 and 50; 5, 3 and 50
		{"given", te, nil, 30, false, [5]int64{100, 30, 11, 3, 8}},      // 3; 7 and 3
		{"1 uW given", te, nil, 1, false, [5]int64{100, 1, 11, 1, 10}},  // 1; 9 and 3
		{"more given than used", te, nil, 130, false, [5]int64{100, 100, 11, 10, 3}},
		{"no load", te, func(_ *tickEnergy, iv *Interval) { iv.Load = 0 }, 30, false, [5]int64{100, 100, 11, 10, 3}},
		{"negative load", te, func(_ *tickEnergy, iv *Interval) { iv.Load = -1 }, 30, false, [5]int64{100, 100, 11, 10, 3}},
		{"little load", te, func(_ *tickEnergy, iv *Interval) { iv.Load = 1 }, 30, false, [5]int64{100, 30, 11, 3, 8}},
		{"1 uJ in ten seconds", te, func(te *tickEnergy, iv *Interval) { te.energy, iv.Elapsed = 1, 10*second }, 0, false, [5]int64{1, 0, 11, 0, 11}},
		{"nothing", te, func(te *tickEnergy, _ *Interval) { te.energy = 0 }, 0, false, [5]int64{0, 0, 11, 10, 3}},
		{"suspended", te, func(_ *tickEnergy, iv *Interval) { iv.Suspended = second / 2 }, 0, false, [5]int64{100, 50, 11, 51, 51}},
		// A model booked nothing for the suspended time: it drew 50 uW for half a second.
		{"modelled, suspended", te, func(te *tickEnergy, iv *Interval) { te.quality, iv.Suspended = usage.Modelled, second/2 }, 0, false, [5]int64{100, 25, 11, 26, 27}},
		{"of a host", te, func(te *tickEnergy, _ *Interval) { te.hasIdle, te.idle = true, 40 }, 0, false, [5]int64{100, 40, 11, 4, 7}},
		{"1 uJ of a host", te, func(te *tickEnergy, _ *Interval) { te.energy, te.hasIdle, te.idle = 1, true, 1 }, 0, false, [5]int64{1, 1, 11, 11, 0}},
		// At idle the curve is off by 30 % of 40 uJ, at half load by 10 % of 50.
		{"by a curve", tickEnergy{energy: 90, classError: 9, quality: usage.Modelled}, nil, 0, true, [5]int64{90, 40, 12, 12, 5}},
		{"by a curve, low load", tickEnergy{energy: 60, classError: 6, quality: usage.Modelled}, func(_ *tickEnergy, iv *Interval) { iv.Load = 200_000 }, 0, true, [5]int64{60, 40, 12, 12, 4}},
		{"by a curve, given", tickEnergy{energy: 90, classError: 9, quality: usage.Modelled}, nil, 45, true, [5]int64{90, 45, 9, 5, 4}},
	} {
		m := New(Config{Static: [power.DomainLimit]int64{power.Rest: c.static}})
		if c.curve {
			m.config.Curve, m.usedCurve = curve, true
		}
		iv := Interval{At: second, Elapsed: second, Load: power.PPM / 2, CPUs: 4}
		if c.change != nil {
			c.change(&c.te, &iv)
		}
		d := m.domainEnergy(power.Rest, c.te, &iv)
		if got := [5]int64{d.Energy, d.Idle, d.Error, d.IdleError, d.ActiveError}; got != c.want || d.Quality != c.te.quality {
			t.Errorf("%s: %v, %v; want %v", c.name, got, d.Quality, c.want)
		}
		if d.divisionError.elapsed != iv.Elapsed || d.divisionError.cpus != 4 {
			t.Errorf("%s: %+v", c.name, d.divisionError)
		}
	}
	// Idle is the power at no load at all.
	m := New(Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 40}, {Load: 1, Power: 90}}}})
	m.usedCurve = true
	if d := m.domainEnergy(power.Rest, tickEnergy{energy: 90, quality: usage.Modelled}, &Interval{Elapsed: second, Load: power.PPM}); d.Idle != 40 {
		t.Errorf("by a steep curve %d uJ are idle, want 40", d.Idle)
	}
	if d := New(Config{}).domainEnergy(power.Rest, tickEnergy{energy: 5}, &Interval{Elapsed: second}); d != (DomainEnergy{}) {
		t.Errorf("absent: %+v", d)
	}
}

// TestDomainLearns checks from which ticks a domain learns, and that a part's error counts the noise
// relative to active power.
func TestDomainLearns(t *testing.T) {
	usual := tickEnergy{energy: 100e6, quality: usage.Measured}
	for _, c := range []struct {
		name   string
		change func(te *tickEnergy, iv *Interval)
		learns bool
	}{
		{"measured", func(*tickEnergy, *Interval) {}, true},
		{"modelled", func(te *tickEnergy, _ *Interval) { te.quality = usage.Modelled }, false},
		{"of a host", func(te *tickEnergy, _ *Interval) { te.quality, te.hasIdle = usage.Modelled, true }, true},
		{"misaligned", func(te *tickEnergy, _ *Interval) { te.misaligned = true }, false},
		{"nothing", func(te *tickEnergy, _ *Interval) { te.energy = 0 }, false},
		{"1 uJ", func(te *tickEnergy, _ *Interval) { te.energy = 1 }, true},
		{"short", func(_ *tickEnergy, iv *Interval) { iv.Elapsed = second / 20 }, false},
	} {
		m, te, iv := New(Config{}), usual, Interval{At: second, Elapsed: second, Load: power.PPM / 2, CPUs: 4}
		c.change(&te, &iv)
		m.domainEnergy(power.Package, te, &iv)
		if learns := m.domainModels[power.Package].points == 1; learns != c.learns {
			t.Errorf("%s: learns %v", c.name, learns)
		}
	}
	for _, hasIdle := range []bool{false, true} {
		m := New(Config{})
		for i := range 40 {
			te := tickEnergy{energy: 100e6 + int64(i%5)*3e6, quality: usage.Measured, hasIdle: hasIdle, idle: 30e6}
			d := m.domainEnergy(power.Package, te, &Interval{At: second, Elapsed: second, Load: int64(i%4) * 200_000, CPUs: 4})
			f := m.domainModels[power.Package].fitted()
			want := f.noise / max(1, float64(d.Active()))
			if got := d.divisionError.noise; math.Abs(got-want) > 1e-9*want || d.divisionError.nonlinearity != f.nonlinearity {
				t.Fatalf("noise %v of %v uW, %v; want %v", got, d.Active(), d.divisionError, want)
			}
		}
	}
}

// TestLevelEnergy checks which of several origins counts for a level: the best class, a readable one
// first, and the first of two that are equal, but a host before all.
func TestLevelEnergy(t *testing.T) {
	type m struct {
		from    power.Origin
		class   int64
		energy  int64 // -1: it never worked
		quality usage.Quality
	}
	const measured, modelled = usage.Measured, usage.Modelled
	for _, c := range []struct {
		name        string
		meters      []m
		energy, off int64
		quality     usage.Quality
	}{
		{"none", nil, 0, 0, usage.Absent},
		{"one", []m{{power.IPMI, 50_000, 70, measured}}, 70, 0, measured},
		{"the best class", []m{{power.IPMI, 50_000, 70, measured}, {power.Hwmon, 20_000, 80, measured}}, 80, 0, measured},
		{"the best class, first", []m{{power.Hwmon, 50_000, 70, measured}, {power.IPMI, 20_000, 80, measured}}, 80, 0, measured},
		{"the worst class of an origin", []m{{power.Hwmon, 20_000, 30, measured}, {power.Hwmon, 60_000, 40, measured}, {power.IPMI, 50_000, 80, measured}}, 80, 0, measured},
		{"equal classes", []m{{min(power.IPMI, power.Hwmon), 20_000, 70, measured}, {max(power.IPMI, power.Hwmon), 20_000, 80, measured}}, 70, 0, measured},
		{"readable first", []m{{power.Hwmon, 20_000, 70, modelled}, {power.IPMI, 50_000, 80, measured}}, 80, 0, measured},
		{"two supplies", []m{{power.Hwmon, 20_000, 30, measured}, {power.Hwmon, 20_000, 40, measured}}, 70, 0, measured},
		{"a spare supply", []m{{power.Hwmon, 20_000, 30, measured}, {power.Hwmon, 20_000, 50, measured}, {power.Hwmon, 20_000, -1, 0}}, 80, 40, modelled},
		{"two spare supplies", []m{{power.Hwmon, 20_000, 30, measured}, {power.Hwmon, 20_000, -1, 0}, {power.Hwmon, 20_000, -1, 0}}, 30, 60, modelled},
		{"only spare supplies", []m{{power.Hwmon, 20_000, -1, 0}}, 0, 0, usage.Absent},
		{"a host", []m{{power.Hwmon, 20_000, 70, measured}, {power.Host, 0, 5, modelled}}, 5, 0, modelled},
	} {
		meters := New(Config{})
		for _, x := range c.meters {
			ms := meterState{Meter: power.Meter{Level: power.Box, From: x.from, ErrorPPM: x.class}}
			if x.energy >= 0 {
				ms.latest = tickEnergy{energy: x.energy, quality: x.quality}
			}
			meters.meters = append(meters.meters, ms, meterState{Meter: power.Meter{Level: power.Board, From: x.from}, latest: tickEnergy{energy: 1000, quality: measured}})
		}
		if got := meters.levelEnergy(power.Box); got.energy != c.energy || got.otherError != c.off || got.quality != c.quality {
			t.Errorf("%s: %+v, want %d +- %d, %v", c.name, got, c.energy, c.off, c.quality)
		}
	}
}

// TestPoints checks the means and variances of points by hand, and that from the eighth point on an
// outlier moves the mean by four standard deviations and a hundredth at most.
func TestPoints(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	var pm PowerModel
	pm.Add(.42, 100)
	pm.Add(.44, 110)
	if b := pm.bins[13]; b.weight != 2 || !near(b.load, .43) || !near(b.power, 105) || !near(b.loadVariance, 1e-4) || !near(b.powerVariance, 25) || !near(b.covariance, .05) {
		t.Errorf("of two points: %+v", b)
	}
	for _, c := range []struct {
		before []float64
		then   float64
		want   float64
	}{
		{[]float64{100, 100, 100, 100, 100, 100, 100}, 1000, 100 + 900./8},
		{[]float64{100, 100, 100, 100, 100, 100, 100, 100}, 1000, 100 + 1./9},
		{[]float64{100, 100, 100, 100, 100, 100, 100, 100}, 1, 100 - 1./9},
		{[]float64{90, 110, 90, 110, 90, 110, 90, 110}, 1000, 100 + 41./9},
		{[]float64{90, 110, 90, 110, 90, 110, 90, 110}, 140, 100 + 40./9},
	} {
		var pm PowerModel
		for _, p := range append(c.before, c.then) {
			pm.Add(.42, p)
		}
		if got := pm.bins[13].power; !near(got, c.want) {
			t.Errorf("%v and then %v: the mean is %v, want %v", c.before, c.then, got, c.want)
		}
	}
	pm = PowerModel{}
	for i, edge := range edges {
		pm.Add(edge, 1)
		if pm.bins[i].weight != 1 || i > 0 && edge <= edges[i-1] {
			t.Errorf("a load of %v is not in bin %d", edge, i)
		}
	}
	if pm.Add(1.5, 1); pm.bins[len(edges)-1].weight != 2 {
		t.Error("more than full load is not in the last bin")
	}
	for range 700 {
		pm.Add(.001, 1)
	}
	if w := pm.bins[0].weight; w != 600 {
		t.Errorf("a bin of 701 points weighs %v, want 600", w)
	}
}

// TestFitIsKept checks that a fit is computed again after 5 % more points, or 60.
func TestFitIsKept(t *testing.T) {
	for _, c := range []struct{ before, kept int }{{19, 0}, {20, 1}, {100, 5}, {1200, 60}, {1300, 60}, {3000, 60}} {
		var pm PowerModel
		add := func(n int) int {
			for range n {
				pm.Add(.5, 100)
			}
			pm.Static()
			return pm.fit.points
		}
		if got := add(c.before); got != c.before {
			t.Errorf("%d points: a fit of %d", c.before, got)
		}
		if got := add(c.kept); got != c.before {
			t.Errorf("%d points after %d: a fit of %d", c.kept, c.before, got)
		}
		if got := add(1); got != c.before+c.kept+1 {
			t.Errorf("%d points after %d: a fit of %d", c.kept+1, c.before, got)
		}
	}
}

// TestDescribe checks the messages of events about readings that are not used.
func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		ms   meterState
		r    reading
		now  int64
		want string
	}{
		{meterState{reason: Unreadable}, reading{problem: "permission denied"}, 0, "permission denied"},
		{meterState{reason: Stalled, value: 70, changedAt: second}, reading{at: second * 1337 / 100}, 0, "stuck at 70 uJ for 12.4s"},
		{meterState{reason: Stalled, value: 70, changedAt: 9 * second}, reading{at: second}, 0, "stuck at 70 uJ for 0s"},
		{meterState{reason: Ambiguous, at: second}, reading{}, 63*second + second/2, "not read for 1m3s"},
		{meterState{reason: Ambiguous, at: 9 * second}, reading{}, second, "not read for 0s"},
		{meterState{reason: Jumped}, reading{shown: 5}, 0, "reading of 5 uJ"},
		{meterState{reason: Jumped, seen: true, value: 3}, reading{shown: 5}, 0, "reading of 5 uJ after 3"},
		{meterState{reason: WentBack, seen: true, value: 9, Meter: power.Meter{Kind: power.Power}}, reading{shown: 5}, 0, "reading of 5 uW after 9"},
	} {
		if c.ms.Kind == 0 {
			c.ms.Kind = power.Energy
		}
		if got := c.ms.describe(c.r, c.now); got != c.want {
			t.Errorf("%v: %q, want %q", c.ms.reason, got, c.want)
		}
	}
	for r := OK; r <= Ambiguous; r++ {
		if (r.Hint() == "") != (r == OK) {
			t.Errorf("%v: hint %q", r, r.Hint())
		}
	}
}
