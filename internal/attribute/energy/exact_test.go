package energy_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// exactMeter is a counter without any error.
var exactMeter = energy.Config{Meters: []power.Meter{{Name: "exact", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}}}

// TestCounterError checks the error of an exact counter to the uJ: half of what it gained while the
// machine was read, rounded up, and energy of earlier ticks.
func TestCounterError(t *testing.T) {
	r := newRig(exactMeter)
	r.value[0] += 100
	if d := r.tick(second, 50).Domain[power.Package]; d.Energy != 100 || d.Error != 0 || d.Quality != usage.Measured {
		t.Errorf("%+v, want 100 +- 0, measured", d)
	}
	r.at += second
	read := func(value int64) []power.Reading { return []power.Reading{{At: r.at, Value: value}} }
	d := r.Tick(energy.Interval{At: r.at, Elapsed: second, Load: 500_000, CPUs: 4}, read(150), read(153)).Domain[power.Package]
	if d.Energy != 51 || d.Error != 2 {
		t.Errorf("%+v, want 51 +- 2", d)
	}
	r = newRig(exactMeter)
	for range 3 {
		if d := r.tick(second, 50).Domain[power.Package]; d.Energy != 0 || d.Error != 0 {
			t.Errorf("%+v while the counter stands still", d)
		}
	}
	r.value[0] += 400
	if d := r.tick(second, 50).Domain[power.Package]; d.Energy != 400 || d.Error != 300 {
		t.Errorf("%+v, want 400 +- 300: three quarters are of earlier ticks", d)
	}
}

// TestAmbiguousByPower checks that the power that a counter showed decides how long it may go
// unread before it may have wrapped: 1000 s of 40 W, four times the highest power, or of 500 W if
// nothing is known.
func TestAmbiguousByPower(t *testing.T) {
	for _, c := range []struct {
		seconds int
		want    []string
	}{
		{60, []string{"rapl/package-0 gone from 60", "rapl/package-0 gone from 60 to 1061"}},
		{0, []string{"rapl/package-0 gone from 0", "rapl/package-0 gone from 0 to 1001", "rapl/package-0 ambiguous from 0"}},
	} {
		r := newRig(one)
		for range c.seconds {
			r.value[0] += 10 * watt
			r.tick(second, 50)
		}
		r.fails[0] = "away"
		for range 1000 {
			r.value[0] += 10 * watt
			r.tick(second, 50)
		}
		r.fails[0] = ""
		r.value[0] += 10 * watt
		r.tick(second, 50)
		r.wantLog(t, c.want...)
	}
}

// TestStalledUncertain checks that a counter has stalled if half of the expected energy is four
// steps, although the model, which knows one load only, may be off by more than half.
func TestStalledUncertain(t *testing.T) {
	for _, c := range []struct {
		step int64
		want []string
	}{
		{24 * watt, []string{"exact stalled from 20"}}, // at full load some 230 W are expected, +- 150 W
		{34 * watt, nil},
	} {
		m := exactMeter.Meters[0]
		m.Step = c.step
		r := newRig(energy.Config{Meters: []power.Meter{m}})
		for range 20 {
			r.value[0] += 100 * watt
			r.tick(second, 10)
		}
		r.tick(second, 100)
		r.wantLog(t, c.want...)
	}
}

// TestSavedModelOfAnyMeter checks that models of a meter with the smallest and with all parameters
// are restored, and with a negative one are not.
func TestSavedModelOfAnyMeter(t *testing.T) {
	full := exactMeter.Meters[0]
	full.Wrap, full.Step, full.Every, full.ErrorPPM, full.Most = wrap, 61, 1e6, 50_000, 400*watt
	for _, m := range []power.Meter{exactMeter.Meters[0], full} {
		c := energy.Config{Meters: []power.Meter{m}}
		r := newRig(c)
		r.run(20, true)
		if err := energy.New(c).RestoreModels("x", r.EncodeModels("x")); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, ruin := range []func(*power.Meter){
		func(m *power.Meter) { m.Wrap = -1 }, func(m *power.Meter) { m.Step = -1 }, func(m *power.Meter) { m.Every = -1 },
		func(m *power.Meter) { m.ErrorPPM = -1 }, func(m *power.Meter) { m.Most = -1 }, func(m *power.Meter) { m.Level = 0 },
		func(m *power.Meter) { m.Level = power.LevelLimit }, func(m *power.Meter) { m.Domain = 0 }, func(m *power.Meter) { m.Domain = power.DomainLimit },
		func(m *power.Meter) { m.From = 0 }, func(m *power.Meter) { m.From = power.OriginLimit }, func(m *power.Meter) { m.Kind = 99 },
	} {
		r := newRig(exactMeter)
		r.run(20, true)
		saved := r.EncodeModels("x")
		m := full
		ruin(&m)
		bad := encodeModelsOf(t, saved, m)
		if err := energy.New(exactMeter).RestoreModels("x", bad); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v, want invalid", m, err)
		}
	}
}

// TestSavedPeak checks that the highest power of a saved meter may be zero, but not negative.
func TestSavedPeak(t *testing.T) {
	r := newRig(exactMeter)
	r.run(20, true)
	for peak, ok := range map[string]bool{"0": true, "-1": false, "5": true} {
		saved := regexp.MustCompile(`"highest_uw":[0-9]+`).ReplaceAll(r.EncodeModels("x"), []byte(`"highest_uw":`+peak))
		if err := energy.New(exactMeter).RestoreModels("x", saved); (err == nil) != ok {
			t.Errorf("a peak of %s uW: %v", peak, err)
		}
	}
}

// encodeModelsOf returns saved models with another meter in place of the only one.
func encodeModelsOf(t *testing.T, saved []byte, m power.Meter) []byte {
	t.Helper()
	var k map[string]any
	if err := json.Unmarshal(saved, &k); err != nil {
		t.Fatal(err)
	}
	k["meters"].([]any)[0].(map[string]any)["meter"] = m
	b, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
