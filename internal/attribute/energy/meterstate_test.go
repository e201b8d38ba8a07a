package energy

import (
	"math"
	"testing"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestInterval checks how long a machine ran in a tick, and which ticks say how power follows load:
// those of a tenth of a second, suspended for no more than a hundredth.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		elapsed, suspended, running int64
		representative              bool
	}{
		{second, 0, second, true},
		{second / 10, 0, second / 10, true},
		{second/10 - 1, 0, second/10 - 1, false},
		{second, second / 100, second * 99 / 100, true},
		{second, second/100 + 1, second*99/100 - 1, false},
		{second, 2 * second, 0, false},
		{second, -5, second, true},
		{0, 0, 0, false},
	} {
		iv := Interval{Elapsed: c.elapsed, Suspended: c.suspended}
		if running, ok := iv.runningTime(), iv.isRepresentative(); running != c.running || ok != c.representative {
			t.Errorf("%d ns, %d of them suspended: ran for %d, representative %v; want %d, %v", c.elapsed, c.suspended, running, ok, c.running, c.representative)
		}
	}
}

// TestMidpoint checks what counts of the readings before and after a snapshot.
func TestMidpoint(t *testing.T) {
	at := func(at, value int64) *power.Reading { return &power.Reading{At: at, Value: value} }
	bad := func(why string) *power.Reading { return &power.Reading{Err: why} }
	for _, c := range []struct {
		name string
		kind power.Kind
		a, b *power.Reading
		want reading
	}{
		{"both", power.Energy, at(10, 100), at(20, 103), reading{ok: true, at: 15, value: 101, shown: 103, readError: 2}},
		{"equal", power.Energy, at(10, 100), at(20, 100), reading{ok: true, at: 15, value: 100, shown: 100}},
		{"wrapped between", power.Energy, at(10, 100), at(20, 4), reading{ok: true, at: 10, value: 100, shown: 100}},
		{"power falls", power.Power, at(10, 100), at(20, 96), reading{ok: true, at: 15, value: 98, shown: 96, readError: 2}},
		{"only before", power.Power, at(10, 100), nil, reading{ok: true, at: 10, value: 100, shown: 100}},
		{"only after", power.Energy, nil, at(20, 103), reading{ok: true, at: 20, value: 103, shown: 103}},
		{"error before", power.Energy, bad("x"), at(20, 103), reading{ok: true, at: 20, value: 103, shown: 103}},
		{"error after", power.Energy, at(10, 100), bad("x"), reading{ok: true, at: 10, value: 100, shown: 100}},
		{"errors", power.Energy, bad("x"), bad("y"), reading{problem: "y"}},
		{"an error and nothing", power.Energy, bad("x"), nil, reading{problem: "not among the meters that were read"}},
		{"nothing", power.Energy, nil, nil, reading{problem: "not among the meters that were read"}},
	} {
		if got := midpoint(c.kind, c.a, c.b); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	rs := []power.Reading{{Meter: 1, Value: 10}, {Meter: 0, Value: 20}, {Meter: 3, Value: 30}}
	for meter, want := range map[int]int64{0: 20, 1: 10, 3: 30} {
		if r := findReading(rs, meter); r == nil || r.Value != want {
			t.Errorf("the reading of meter %d is %+v, want %d", meter, r, want)
		}
	}
	if r := findReading(rs, 2); r != nil {
		t.Errorf("a reading of a meter that was not read: %+v", r)
	}
}

// TestCounterGain checks gains of counters at their limits.
func TestCounterGain(t *testing.T) {
	for _, c := range []struct {
		from, to, wrap, likely, possible int64
		gain                             int64
		reason                           Reason
	}{
		{100, 150, 0, 50, 50, 50, OK},
		{100, 151, 0, 50, 50, 0, Jumped},
		{100, 100, 0, 0, 0, 0, OK},
		{100, 99, 0, 50, 50, 0, WentBack},
		{990, 10, 1000, 50, 20, 20, OK},
		{990, 11, 1000, 50, 20, 0, WentBack},
		{100, 150, 1000, 999, 50, 50, OK},
		{100, 150, 1000, 1000, 50, 0, Ambiguous},
		{100, 150, 1, 0, 50, 50, OK},
		{100, 150, 1, 1, 50, 0, Ambiguous},
	} {
		if gain, reason := CounterGain(c.from, c.to, c.wrap, c.likely, c.possible); gain != c.gain || reason != c.reason {
			t.Errorf("%+v: %d, %v", c, gain, reason)
		}
	}
}

// TestMeterLimits checks what a meter can show, and is expected to.
func TestMeterLimits(t *testing.T) {
	for _, c := range []struct {
		level                   power.Level
		given, peak             int64
		possible, likely, times int64
	}{
		{power.Part, 0, 0, 5_000e6, 500e6, 0},
		{power.Part, 0, 250e6, 5_000e6, 1_000e6, 0},
		{power.Part, 0, 251e6, 5_020e6, 1_004e6, 0},
		{power.Board, 0, 1e6, 50_000e6, 4e6, 0},
		{power.Box, 0, 2_501e6, 50_020e6, 10_004e6, 0},
		{power.Box, 1, 9e6, 1, 1, 0},
		{power.Part, 0, 1, 5_000e6, 4, 0},
	} {
		ms := meterState{Meter: power.Meter{Level: c.level, Most: c.given}, peakPower: c.peak}
		if possible, likely := ms.maxPower(), ms.likelyMaxPower(); possible != c.possible || likely != c.likely {
			t.Errorf("%+v: %d uW are possible and %d likely", c, possible, likely)
		}
	}
}

// TestValidate checks readings at the limits of a meter that knows of one load, 100 W.
func TestValidate(t *testing.T) {
	counter := meterState{Meter: power.Meter{Kind: power.Energy, Wrap: 1000e6, Step: 10e6, Every: second, Most: 200e6}, seen: true, at: 10 * second, value: 500e6, changedAt: 10 * second}
	sensor := meterState{Meter: power.Meter{Kind: power.Power, Step: 2e6, Every: second, Most: 200e6}, seen: true, at: 10 * second, value: 110e6, changedAt: 10 * second}
	for range 50 {
		counter.model.Add(.5, 100e6)
		sensor.model.Add(.5, 100e6)
	}
	const half = power.PPM / 2
	for _, c := range []struct {
		name   string
		ms     meterState
		change func(ms *meterState)
		after  int64 // s
		value  int64
		load   int64
		want   Reason
	}{
		{"a counter at its wrap", counter, nil, 3, 1000e6, half, OK},
		{"a counter past its wrap", counter, nil, 3, 1000e6 + 1, half, Jumped},
		{"negative", counter, nil, 1, -1, half, Jumped},
		{"0, wrapped", counter, nil, 3, 0, half, OK},
		{"never wraps", counter, func(ms *meterState) { ms.Wrap = 0 }, 3, 1000e6 + 1, half, OK},
		// 200 W for a second, another second in which the value may be late, and one step.
		{"as much as possible", counter, nil, 1, 910e6, half, OK},
		{"more than possible", counter, nil, 1, 910e6 + 1, half, Jumped},
		{"went back", counter, nil, 1, 499e6, half, WentBack},
		{"ambiguous", counter, nil, 5, 600e6, half, Ambiguous},
		{"not read for long", counter, nil, 4, 600e6, half, OK},
		{"stands, just", counter, nil, 1, 500e6, half, OK},
		{"stands", counter, nil, 2, 500e6, half, Stalled},
		{"stands, idle", counter, nil, 2, 500e6, power.PPM/100 - 1, OK},
		{"stands at 1 %", counter, func(ms *meterState) { ms.Step = 1 }, 2, 500e6, power.PPM / 100, Stalled},
		{"stands, in large steps", counter, func(ms *meterState) { ms.Step = 25e6 }, 2, 500e6, half, OK},
		{"stands, in steps of a quarter", counter, func(ms *meterState) { ms.Step = 245e5 }, 2, 500e6, half, Stalled},
		{"stands, in no steps", counter, func(ms *meterState) { ms.Step = 0 }, 2, 500e6, half, Stalled},
		{"stalled before", counter, func(ms *meterState) { ms.reason = Stalled }, 1, 500e6, half, Stalled},
		{"first reading", counter, func(ms *meterState) { ms.seen = false }, 1, 500e6, half, OK},
		{"as much power as possible", sensor, nil, 1, 200e6, half, OK},
		{"more power than possible", sensor, nil, 1, 200e6 + 1, half, Jumped},
		{"no power", sensor, nil, 1, 0, half, OK},
		{"stuck", sensor, func(ms *meterState) { ms.value = 125e6 }, 10, 125e6, half, Stalled},
		{"stuck, not for long", sensor, func(ms *meterState) { ms.value = 125e6 }, 9, 125e6, half, OK},
		{"stuck, while it is slow", sensor, func(ms *meterState) { ms.value, ms.Every = 125e6, 2*second }, 19, 125e6, half, OK},
		{"stuck, although it is slow", sensor, func(ms *meterState) { ms.value, ms.Every = 125e6, 2*second }, 20, 125e6, half, Stalled},
		{"changed", sensor, func(ms *meterState) { ms.value = 125e6 }, 10, 126e6, half, OK},
		{"stuck near the model", sensor, func(ms *meterState) { ms.value = 115e6 }, 10, 115e6, half, OK},
		{"without a model", sensor, func(ms *meterState) { ms.value, ms.model = 125e6, PowerModel{} }, 10, 125e6, half, OK},
	} {
		ms := c.ms
		if c.change != nil {
			c.change(&ms)
		}
		now := 10*second + c.after*second
		if got := ms.validate(reading{ok: true, at: now, value: c.value}, &Interval{At: now, Elapsed: second, Load: c.load, CPUs: 4}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := counter.validate(reading{}, &Interval{}); got != Unreadable {
		t.Errorf("not read: %v", got)
	}
}

// TestContradictsModel checks by how much a sensor may deviate from its model while it shows the same:
// by the model's error, a tenth of the value and four steps.
func TestContradictsModel(t *testing.T) {
	ms := meterState{Meter: power.Meter{Step: 2e6}}
	for range 50 {
		ms.model.Add(.5, 100e6)
	}
	_, off := ms.model.Power(.5)
	iv := &Interval{Load: power.PPM / 2}
	for _, side := range []float64{1, -1} {
		limit := (100e6 + side*(off+8e6)) / (1 - side*.1)
		for d, want := range map[float64]bool{-1000: false, 1000: true} {
			v := int64(limit + side*d)
			if ms.value = v; ms.contradictsModel(reading{value: v}, iv) != want {
				t.Errorf("%d uW for 100 W +- %.0f uW: contradicts %v, want %v", v, off, !want, want)
			}
			if ms.contradictsModel(reading{value: v + 1}, iv) {
				t.Errorf("another value contradicts")
			}
		}
	}
}

// TestBookSensor checks the trapezoid between two values, without the time of a suspend, and its error.
func TestBookSensor(t *testing.T) {
	for _, c := range []struct {
		from, to  int64 // W
		suspended int64 // s, of ten
		want      int64
		off       int64
	}{{100, 140, 0, 1200e6, 200e6 + 10e6}, {140, 100, 0, 1200e6, 210e6}, {100, 100, 4, 600e6, 6e6}, {100, 100, -3, 1000e6, 10e6}, {100, 101, 0, 1005e6, 15e6}} {
		ms := meterState{Meter: power.Meter{Kind: power.Power, Step: 1e6, ErrorPPM: 20_000}, seen: true, value: c.from * 1e6}
		iv := &Interval{At: 10 * second, Elapsed: 10 * second, Suspended: c.suspended * second, Load: power.PPM / 2}
		ms.bookSensor(reading{ok: true, at: 10 * second, value: c.to * 1e6}, iv)
		if e := ms.latest; e.energy != c.want || e.otherError != c.off || e.classError != c.want/50 || e.quality != usage.Measured {
			t.Errorf("%+v: %+v", c, e)
		}
		if peak := ms.peakPower; c.suspended <= 0 && peak != (c.from+c.to)*1e6/2 || c.suspended > 0 && peak != 0 {
			t.Errorf("%+v: the peak is %d uW", c, peak)
		}
	}
}

// TestBookCounter checks what a counter books of its gain in a tick of a second: after an outage, in
// which a model booked a surplus, and after ticks in which it stood still. Its model expects 100 W.
func TestBookCounter(t *testing.T) {
	for _, c := range []struct {
		name            string
		gained          int64
		span            int64 // s since the last value that was used
		surplus, outage int64
		energy, left    int64
		modelled        bool
	}{
		{"usual", 90e6, 1, 0, 0, 90e6, 0, false},
		{"of two ticks", 200e6, 2, 0, 0, 200e6, 0, false},
		{"a surplus, deducted at once", 390e6, 4, 290e6, 290e6, 100e6, 0, true},
		{"a small surplus", 90e6, 1, 5e6, 0, 85e6, 0, true},
		{"a surplus of 1 uJ", 90e6, 1, 1, 0, 90e6 - 1, 0, true},
		// Half of the expected energy stays in the tick.
		{"a large surplus", 150e6, 2, 500e6, 0, 50e6, 400e6, true},
		{"a large surplus, little gain", 80e6, 1, 500e6, 0, 40e6, 460e6, true},
		// It gained what this tick explains: it stood still, and the surplus is void.
		{"stood still", 100e6, 11, 1000e6, 1000e6, 100e6, 0, false},
		{"stood still, surplus of before", 100e6, 11, 1030e6, 1000e6, 70e6, 0, true},
		// The outage was too short to tell.
		{"a short outage", 100e6, 2, 49e6, 49e6, 51e6, 0, true},
	} {
		ms := meterState{Meter: power.Meter{Kind: power.Energy, ErrorPPM: 50_000, Most: 400e6}, seen: true, surplus: c.surplus, outageSurplus: c.outage}
		for range 100 {
			ms.model.Add(.5, 100e6)
		}
		if c.outage > 0 {
			ms.reason = Unreadable
		}
		now := c.span * second
		ms.bookCounter(reading{ok: true, at: now, value: c.gained}, &Interval{At: now, Elapsed: second, Load: power.PPM / 2, CPUs: 4})
		e := ms.latest
		if e.energy != c.energy || ms.surplus != c.left || (e.quality == usage.Modelled) != c.modelled || e.classError != c.energy/20 {
			t.Errorf("%s: booked %+v, a surplus of %d is left; want %d uJ, %d", c.name, e, ms.surplus, c.energy, c.left)
		}
		if late := c.modelled || c.span > 1 && c.outage == 0; e.misaligned != late {
			t.Errorf("%s: misaligned %v, want %v", c.name, e.misaligned, late)
		}
		if ms.reason != OK || ms.outageSurplus != 0 || ms.value != c.gained {
			t.Errorf("%s: %+v afterwards", c.name, ms)
		}
	}
	// A gain over two ticks is off by the half of it that is of the previous tick; one over a tick and a
	// half may be of this tick.
	for span, want := range map[int64]int64{3 * second / 2: 0, 3*second/2 + 2: 33, 2 * second: 50} {
		ms := meterState{Meter: power.Meter{Kind: power.Energy}, seen: true}
		ms.bookCounter(reading{ok: true, at: span, value: 100}, &Interval{At: span, Elapsed: second, Load: power.PPM / 2, CPUs: 4})
		if off := ms.latest.otherError; off != want && off != want+1 {
			t.Errorf("100 uJ over %d ns: off by %d, want %d", span, off, want)
		}
	}
	// Errors of both readings, of a step, and of half the time between values at 100 W.
	ms := meterState{Meter: power.Meter{Kind: power.Energy, Step: 7, Every: second / 10}, seen: true, readError: 100}
	ms.bookCounter(reading{ok: true, at: second, value: 100e6, readError: 20}, &Interval{At: second, Elapsed: second, Load: power.PPM / 2, CPUs: 4})
	if off := ms.latest.otherError; off != 5e6+127 {
		t.Errorf("off by %d, want 5000127", off)
	}
}

// TestIsValidShare checks the numbers of a share at their limits.
func TestIsValidShare(t *testing.T) {
	const most = math.MaxInt64 / 4
	for _, c := range []struct {
		name string
		s    power.Share
		want bool
	}{
		{"all zero", power.Share{Epoch: "e"}, true},
		{"no epoch", power.Share{N: 1, At: 1}, false},
		{"the most", power.Share{Epoch: "e", N: most, At: most, Active: most, Idle: most, Error: most, Modelled: most}, true},
		{"all modelled", power.Share{Epoch: "e", Active: 3, Idle: 4, Modelled: 7}, true},
		{"more modelled", power.Share{Epoch: "e", Active: 3, Idle: 4, Modelled: 8}, false},
		{"N", power.Share{Epoch: "e", N: most + 1}, false}, {"at", power.Share{Epoch: "e", At: most + 1}, false},
		{"active", power.Share{Epoch: "e", Active: most + 1}, false}, {"idle", power.Share{Epoch: "e", Idle: most + 1}, false},
		{"error", power.Share{Epoch: "e", Error: most + 1}, false},
		{"N below 0", power.Share{Epoch: "e", N: -1}, false}, {"at below 0", power.Share{Epoch: "e", At: -1}, false},
		{"active below 0", power.Share{Epoch: "e", Active: -1, Idle: 5}, false}, {"idle below 0", power.Share{Epoch: "e", Active: 5, Idle: -1}, false},
		{"error below 0", power.Share{Epoch: "e", Error: -1}, false}, {"modelled below 0", power.Share{Epoch: "e", Modelled: -1}, false},
	} {
		if got := isValidShare(&c.s); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestStallTime checks how long a share may stay as it is.
func TestStallTime(t *testing.T) {
	for interval, want := range map[int64]int64{0: 5 * second, second: 5 * second, 2 * second: 6 * second, 60 * second: 180 * second, 61 * second: 180 * second} {
		if got := (&hostState{interval: interval}).stallTime(); got != want {
			t.Errorf("shares each %d s: %d s, want %d", interval/second, got/second, want/second)
		}
	}
}

// TestBookFailure checks what a model books for a counter in an outage, and that it is all known
// afterwards: for a counter that goes on, and for one whose suspect value proves right.
func TestBookFailure(t *testing.T) {
	ms := meterState{Meter: power.Meter{Kind: power.Energy, Wrap: 1e15, Most: 400e6}, seen: true, value: 5e12, surplus: 9}
	for i := range 100 {
		ms.model.Add(.5, 100e6+float64(i%5)*4e6)
	}
	iv := &Interval{At: 10 * second, Elapsed: second, Load: power.PPM / 2, CPUs: 4}
	expected, off := ms.predict(iv)
	for i := range int64(3) {
		iv.At = (10 + i) * second
		ms.bookFailure(WentBack, iv)
		if e := ms.latest; e.energy != expected || e.otherError != off || off == 0 || e.quality != usage.Modelled || ms.failedSince != 9*second {
			t.Errorf("in an outage %+v since %d, want %d +- %d", e, ms.failedSince, expected, off)
		}
	}
	if ms.surplus != 9+3*expected || ms.outageSurplus != 3*expected || ms.outageError != 3*off || ms.reason != WentBack {
		t.Errorf("a surplus of %d, %d +- %d of them in the outage; want %d +- %d", ms.surplus, ms.outageSurplus, ms.outageError, 3*expected, 3*off)
	}
	// It gained no more than this tick explains, but the model may be off by that.
	unsure := ms
	unsure.outageError = 4 * expected
	unsure.bookCounter(reading{ok: true, at: 13 * second, value: 5e12 + expected}, iv)
	if unsure.surplus <= 2*expected {
		t.Errorf("a surplus of %d is left, want most of %d", unsure.surplus, 3*expected)
	}
	ms.suspect = reading{ok: true, at: 12 * second, value: 1000, readError: 3}
	if why := ms.validate(reading{ok: true, at: 13 * second, value: 1000 + expected}, iv); why != OK {
		t.Errorf("a value that follows the suspect one: %v", why)
	}
	if ms.surplus != 9 || ms.outageSurplus != 0 || ms.outageError != 0 || ms.at != 12*second || ms.value != 1000 || ms.readError != 3 {
		t.Errorf("counting goes on from %d at %d, +- %d, with a surplus of %d, %d +- %d", ms.value, ms.at, ms.readError, ms.surplus, ms.outageSurplus, ms.outageError)
	}
}
