package energy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/power"
)

// A drawnMachine is a machine with its meter of packages. All its values depend on the seed only.
type drawnMachine struct {
	result measured // power when idle and at full load
	// rise is the power above idle at a load, in parts of that at full load.
	rise   func(load float64) float64
	random *rand.Rand
	scale  float64 // what the meter shows of the true energy
	noise  float64 // of the power of a tick, relative standard deviation
	sway   float64 // of the load, the same
	meters *Meters
	at     int64 // ns
	value  int64 // uJ
}

// drawMachine draws one of the published results that are not in the table, and how its power
// rises: mostly as in results of its generation or maker, else as a power of the load. Every third
// one wakes up: most of its rise to a tenth of full load comes earlier.
func drawMachine(seed uint64, results []measured, curveOf func(*measured) power.Curve) *drawnMachine {
	r := rand.New(rand.NewPCG(seed, 3))
	d := &drawnMachine{result: results[r.IntN(len(results))], random: r}
	rise := drawRise(r, d.result.model)
	d.rise = rise
	if awake := .02 + .08*r.Float64(); r.IntN(3) == 0 {
		d.rise = func(u float64) float64 {
			if u < .1 {
				return min(1, u/awake) * rise(.1)
			}
			return rise(u)
		}
	}
	d.scale, d.noise, d.sway = 1+.05*(2*r.Float64()-1), .03*r.Float64(), .03*r.Float64()
	m := power.Meter{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap,
		Step: 61, Every: 1e6, ErrorPPM: 50_000}
	d.meters = New(Config{Meters: []power.Meter{m}, Curve: curveOf(&d.result)})
	d.meters.Tick(Interval{CPUs: d.result.threads}, []power.Reading{{}}, nil)
	return d
}

func drawRise(r *rand.Rand, model string) func(float64) float64 {
	if r.IntN(3) == 0 {
		p := .5 + .8*r.Float64()
		return func(u float64) float64 { return math.Pow(u, p) }
	}
	complete := func(alike func(*curveRow) bool) []curveRow {
		return rowsOf(curveTable, func(row *curveRow) bool { return len(row.watts) == curveSteps && alike(row) })
	}
	rows := complete(func(row *curveRow) bool { return generation(row.cpu) == generation(model) })
	if len(rows) == 0 {
		rows = complete(func(row *curveRow) bool { return row.maker() == maker(model) })
	}
	w := rows[r.IntN(len(rows))].watts
	return func(u float64) float64 {
		i := min(int(u*(curveSteps-1)), curveSteps-2)
		part := u*(curveSteps-1) - float64(i)
		return (w[i] + (w[i+1]-w[i])*part - w[0]) / (w[curveSteps-1] - w[0])
	}
}

func (d *drawnMachine) watts(load float64) float64 {
	return d.result.idle + (d.result.full-d.result.idle)*d.rise(load)
}

// run runs some seconds at about a load, and returns the active energy booked, its error and the
// true one, in J.
func (d *drawnMachine) run(t *testing.T, seconds int, load float64) (booked, off, truth float64) {
	t.Helper()
	for range seconds {
		u := min(1, max(0, load*(1+d.sway*d.random.NormFloat64())))
		drawn := max(d.result.idle, d.watts(u)*(1+d.noise*d.random.NormFloat64()))
		truth += drawn - d.result.idle
		d.at += second
		d.value += int64(drawn * d.scale * 1e6)
		iv := Interval{At: d.at, Elapsed: second, Load: int64(u * power.PPM), CPUs: d.result.threads}
		a := d.meters.Tick(iv, []power.Reading{{At: d.at, Value: d.value}}, nil).Domain[power.Package]
		if a.Idle < 0 || a.Idle > a.Energy || min(a.Error, a.IdleError, a.ActiveError) < 0 {
			t.Fatalf("%+v: %+v", d.result, a)
		}
		booked += float64(a.Active()) / 1e6
		off += float64(a.ActiveError) / 1e6
	}
	return booked, off, truth
}

// bands count how often errors cover the truth, and how wide they are.
type bands struct {
	covered int
	widths  []float64
}

func (b *bands) add(booked, off, truth float64) {
	if math.Abs(booked-truth) <= off {
		b.covered++
	}
	b.widths = append(b.widths, off/booked)
}

func (b *bands) coverage() float64 { return float64(b.covered) / float64(len(b.widths)) }

func (b *bands) width() float64 { return median(b.widths) }

func (b *bands) String() string {
	return fmt.Sprintf("%.1f %% +-%.1f %%", 100*b.coverage(), 100*b.width())
}

// without returns the curve that name has in a table without the machine's CPU.
func without(m *measured, name string) power.Curve {
	cpu := cpuName(m.model)
	c, _ := lookup(rowsOf(curveTable, func(r *curveRow) bool { return !strings.EqualFold(r.cpu, cpu) }), name, m.threads)
	return c
}

// TestIdleRangeCovers draws machines that never rest: half load from the start, then other loads,
// and at last idle seconds. The error of the active energy must cover the truth in 95 of 100, shrink
// with each change, and be 30 % or less in the median where the table has the CPU.
func TestIdleRangeCovers(t *testing.T) {
	results := readMeasured(t)
	for _, tc := range []struct {
		name    string
		seeds   uint64
		curveOf func(*measured) power.Curve
		width   float64 // at half load
	}{
		{"the CPU in the table", 1000, func(m *measured) power.Curve { c, _ := LookupCurve(m.model, m.threads); return c }, .3},
		{"the CPU not in the table", 200, func(m *measured) power.Curve { return without(m, m.model) }, .42},
		{"only the maker known", 200, func(m *measured) power.Curve { return without(m, maker(m.model)) }, .36},
		{"unknown", 200, func(m *measured) power.Curve { return without(m, "") }, .45},
	} {
		var first, steady, changed, low, idle bands
		for seed := range tc.seeds {
			d := drawMachine(seed, results, tc.curveOf)
			half := .45 + .1*d.random.Float64()
			first.add(d.run(t, 60, half))
			steady.add(d.run(t, 30, half))
			for range 4 {
				d.run(t, 10, .1+.9*d.random.Float64())
			}
			changed.add(d.run(t, 30, half))
			d.run(t, 10, .05+.1*d.random.Float64())
			low.add(d.run(t, 30, half))
			d.run(t, 10, .01*d.random.Float64())
			idle.add(d.run(t, 30, half))
		}
		t.Logf("%-25s first minute %v, then %v, after other loads %v, low loads %v, idle %v", tc.name, &first, &steady, &changed, &low, &idle)
		stages := []*bands{&first, &steady, &changed, &low, &idle}
		for i, b := range stages {
			if b.coverage() < .95 {
				t.Errorf("%s: at stage %d the error covers %v", tc.name, i, b)
			}
			if i > 0 && b.width() > stages[i-1].width() {
				t.Errorf("%s: the error grows from %v to %v at stage %d", tc.name, stages[i-1], b, i)
			}
		}
		if first.width() > tc.width || idle.width() > .15 {
			t.Errorf("%s: +-%.3f in the first minute and +-%.3f after idling, want at most %.3f and 0.15", tc.name, first.width(), idle.width(), tc.width)
		}
	}
}

// TestRestCovers draws machines that rest at some load and then run at several. The error of the active
// energy must cover the truth in 95 of 100, and be small where they rested at 3 % or less.
func TestRestCovers(t *testing.T) {
	results := readMeasured(t)
	for _, tc := range []struct {
		name    string
		curveOf func(*measured) power.Curve
	}{
		{"the CPU in the table", func(m *measured) power.Curve { c, _ := LookupCurve(m.model, m.threads); return c }},
		{"the CPU not in the table", func(m *measured) power.Curve { return without(m, m.model) }},
		{"unknown", func(m *measured) power.Curve { return without(m, "") }},
	} {
		for _, rest := range []struct{ load, width float64 }{{.002, .07}, {.005, .08}, {.01, .13}, {.022, .2}, {.05, .33}, {.08, .37}} {
			var first, later bands
			for seed := range uint64(400) {
				d := drawMachine(seed, results, tc.curveOf)
				half := .45 + .1*d.random.Float64()
				d.run(t, 60, rest.load)
				first.add(d.run(t, 30, half))
				for range 6 {
					d.run(t, 10, .1+.9*d.random.Float64())
				}
				later.add(d.run(t, 30, half))
			}
			t.Logf("%-25s rest at %.1f %%: first %v, after other loads %v", tc.name, 100*rest.load, &first, &later)
			if first.coverage() < .95 || later.coverage() < .95 || later.width() > rest.width {
				t.Errorf("%s, rest at %.1f %%: first %v, after other loads %v, want 95 %% and at most +-%.0f %%", tc.name, 100*rest.load, &first, &later, 100*rest.width)
			}
		}
	}
}

// halfCurve is of a machine that draws 40 W idle, 100 W at half load and 140 W at full load.
var halfCurve = power.Curve{Domain: power.Rest, IdleErrorPPM: idleErrorPPM[modelErrorPPM], ErrorPPM: modelErrorPPM,
	Points: []power.Point{{Load: 0, Power: 40e6}, {Load: 500_000, Power: 100e6}, {Load: power.PPM, Power: 140e6}}}

// TestIdleRange checks the range against numbers by hand: at half load idle is 2/3 of active, so by
// the factors 2.6 and 1.9 it is between 0.256 and 1.267 of active, or 20.4 and 55.9 of 100 W.
func TestIdleRange(t *testing.T) {
	const watt = 1e6
	near := func(a, b float64) bool { return math.Abs(a-b) < .1*watt }
	calibrated := power.Curve{Domain: power.Package, ErrorPPM: 50_000, Points: halfCurve.Points}
	family, unknown := halfCurve, halfCurve
	family.IdleErrorPPM, unknown.IdleErrorPPM = idleErrorPPM[familyErrorPPM], idleErrorPPM[unknownErrorPPM]
	for _, c := range []struct {
		name        string
		curve       *power.Curve
		load        float64
		least, most float64 // W of 100 W
	}{
		{"model", &halfCurve, .5, 20.41, 55.88},
		{"family", &family, .5, 16.00, 63.41},
		{"unknown", &unknown, .5, 4.88, 62.50},
		{"calibrated", &calibrated, .5, 36.70, 43.40}, // factors of 1.15
		{"at full load", &halfCurve, 1, 13.33, 43.18},
		// A fifth of full load is 5/9 below steepLoad; active is 24 W, ratio 1.667; 2.6^1.444 and 1.9^2.111.
		{"at a fifth", &halfCurve, .2, 29.54, 86.60},
		// Below a tenth the lower limit is that of a tenth: 40/12 / 2.6^1.764; the upper one
		// is 1.9^2.911 x 40/2.4.
		{"at a fiftieth", &halfCurve, .02, 38.18, 99.08},
	} {
		pm := PowerModel{curve: c.curve}
		for range 5 {
			pm.Add(c.load, 100*watt)
		}
		r := pm.idleRange(0)
		if !near(r.least, c.least*watt) || !near(r.most, c.most*watt) {
			t.Errorf("%s: %.2f to %.2f W, want %.2f to %.2f", c.name, r.least/watt, r.most/watt, c.least, c.most)
		}
		static, off := pm.Static()
		if static-off < r.least-2*watt || static+off > r.most+2*watt {
			t.Errorf("%s: static %.2f +- %.2f W", c.name, static/watt, off/watt)
		}
	}
	// Noise of 2 W in four points is one of 2 W in their mean, with 95 of 100.
	pm := PowerModel{curve: &halfCurve}
	for range 4 {
		pm.Add(.5, 100*watt)
	}
	if r := pm.idleRange(2 * watt); !near(r.least, .98*20.41*watt) || !near(r.most, 1.02*55.88*watt) {
		t.Errorf("with noise: %.2f to %.2f W", r.least/watt, r.most/watt)
	}
	// The load with the smallest range counts.
	for range 4 {
		pm.Add(.2, 30*watt)
	}
	if r := pm.idleRange(0); !near(r.least, .3*29.54*watt) || !near(r.most, .3*86.60*watt) {
		t.Errorf("of two loads: %.2f to %.2f W", r.least/watt, r.most/watt)
	}
}

// TestStaticLimits checks that idle power may be as low as a calibrated curve says, and that it is
// not less than what full load allows where lines would be below zero.
func TestStaticLimits(t *testing.T) {
	deep := power.Curve{Domain: power.Package, ErrorPPM: 50_000, Points: []power.Point{{Load: 0, Power: 5e6}, {Load: power.PPM, Power: 195e6}}}
	pm := PowerModel{curve: &deep}
	for range 5 {
		pm.Add(.5, 100e6)
	}
	if static, off := pm.Static(); math.Abs(static-5e6) > .2e6 || off < .5e6 || off > 2.5e6 {
		t.Errorf("%.2f +- %.2f W, want about 5", static/1e6, off/1e6)
	}
	pm = PowerModel{}
	for range 20 {
		pm.Add(.3, 100e6)
		pm.Add(.9, 1000e6)
	}
	if static, _ := pm.Static(); static < 80e6 || static > 150e6 {
		t.Errorf("%.2f W, while 100 W were the least and 1000 W the most", static/1e6)
	}
}

// TestIdleRangeIsUsed checks which domains use the curve.
func TestIdleRangeIsUsed(t *testing.T) {
	pkg := power.Meter{Name: "package", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}
	gpu := power.Meter{Name: "gpu", Level: power.Part, Domain: power.GPU, Kind: power.Energy, From: power.NVML}
	box := power.Meter{Name: "box", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.IPMI}
	host := power.Meter{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host}
	packages := halfCurve
	packages.Domain = power.Package
	zero := power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0}, {Load: power.PPM, Power: 1e6}}}
	for _, c := range []struct {
		name   string
		curve  power.Curve
		meters []power.Meter
		want   []power.Domain
	}{
		{"packages", halfCurve, []power.Meter{pkg}, []power.Domain{power.Package}},
		{"packages and box", halfCurve, []power.Meter{box, pkg}, []power.Domain{power.Package}},
		{"box", halfCurve, []power.Meter{box}, []power.Domain{power.Package, power.Rest}},
		{"box and accelerator", halfCurve, []power.Meter{gpu, box}, []power.Domain{power.Package, power.Rest}},
		{"box, curve of packages", packages, []power.Meter{box}, []power.Domain{power.Package}},
		{"host", halfCurve, []power.Meter{host}, nil},
		{"no curve", power.Curve{}, []power.Meter{pkg}, nil},
		{"no idle power", zero, []power.Meter{pkg}, nil},
	} {
		m := New(Config{Meters: c.meters, Curve: c.curve})
		again := New(Config{Meters: c.meters, Curve: c.curve})
		if err := again.RestoreModels("x", m.EncodeModels("x")); err != nil {
			t.Fatal(err)
		}
		for name, m := range map[string]*Meters{"new": m, "restored": again} {
			var got []power.Domain
			for d := range m.domainModels {
				if m.domainModels[d].curve != nil {
					got = append(got, power.Domain(d))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %s: %v, want %v", c.name, name, got, c.want)
			}
		}
	}
}

// TestCombine checks means of estimates by hand.
func TestCombine(t *testing.T) {
	for _, c := range []struct{ a, aError, b, bError, want, error float64 }{
		{100, 10, 100, 10, 100, 7.07},
		{100, 10, 120, 10, 110, 10},          // 20 apart, where 14 are expected
		{100, 30, 120, 10, 118, 9.49},        // by weights of 1 and 9
		{100, 0, 100, 0, 100, math.Sqrt(.5)}, // an error of 1 uW at least
		{100, 0, 103, 1, 101.5, 1.5},
	} {
		got, off := combine(c.a, c.aError, c.b, c.bError)
		if math.Abs(got-c.want) > .01 || math.Abs(off-c.error) > .01 {
			t.Errorf("%+v: %.3f +- %.3f", c, got, off)
		}
	}
}

// TestIdleSurvivesRestart checks that what a busy machine learned in some idle seconds counts after
// a restart into half load, and that models of earlier versions, in which only points are, do too.
func TestIdleSurvivesRestart(t *testing.T) {
	const watt = 1_000_000
	c := Config{Curve: halfCurve, Meters: []power.Meter{{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}}}
	idleOf := func(m *Meters) (int64, int64) {
		uW, off, ok := m.IdlePower(power.Package)
		if !ok {
			t.Fatal("no idle power")
		}
		return uW, off
	}
	m := New(c)
	at, value := int64(0), int64(0)
	tick := func(m *Meters, load, uW int64) {
		at, value = at+second, value+uW
		m.Tick(Interval{At: at, Elapsed: second, Load: load, CPUs: 8}, []power.Reading{{At: at, Value: value}}, nil)
	}
	tick(m, 0, 0)
	for range 60 {
		tick(m, 500_000, 90*watt)
	}
	uncertain, wide := idleOf(m)
	if wide < 10*watt || uncertain-wide > 30*watt || uncertain+wide < 30*watt {
		t.Errorf("at half load %d +- %d uW", uncertain, wide)
	}
	for range 10 {
		tick(m, 1_000, 30*watt)
	}
	for range 60 {
		tick(m, 500_000, 90*watt)
	}
	idle, off := idleOf(m)
	if idle < 28*watt || idle > 31*watt || off > 4*watt {
		t.Errorf("after idling %d +- %d uW, want 30 W +- 4 or less", idle, off)
	}
	earlier := `{"version":1,"machine":"x","meters":[],"domains":[null,[[0,10,1000,30000000,0],[13,120,500000,90000000,0]],null,null,null]}`
	for name, saved := range map[string]string{"its own": string(m.EncodeModels("x")), "an earlier version's": earlier} {
		again := New(c)
		if err := again.RestoreModels("x", []byte(saved)); err != nil {
			t.Fatal(err)
		}
		tick(again, 0, 0)
		tick(again, 500_000, 90*watt)
		if got, gotOff := idleOf(again); got-idle > watt || idle-got > watt || gotOff > 4*watt {
			t.Errorf("%s: after a restart %d +- %d uW, before it %d +- %d", name, got, gotOff, idle, off)
		}
	}
}

// TestLearn checks that the last tick of a counter that then stands still is not learned: it may have
// stopped in the middle of it.
func TestLearn(t *testing.T) {
	const watt = 1e6
	var pm PowerModel
	pm.Learn(true, .5, 50*watt) // the first one at once
	for range 3 {
		pm.Learn(true, .5, 50*watt)
	}
	pm.Learn(true, .5, 10*watt) // stopped within the tick
	pm.Learn(false, .5, 0)
	pm.Learn(true, .5, 50*watt)
	pm.Learn(true, .5, 50*watt)
	if b := pm.binFrom(.4); pm.points != 5 || b == nil || b.power != 50*watt {
		t.Errorf("%d points, %+v, want 5 of 50 W", pm.points, b)
	}
}
