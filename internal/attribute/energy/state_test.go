package energy_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestStates checks the states of meters and the idle power, learned and configured.
func TestStates(t *testing.T) {
	const second, watt = int64(1e9), int64(1e6)
	m := energy.New(energy.Config{
		Meters: []power.Meter{{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, Every: 1e6},
			{Name: "rapl/package-0/dram", Level: power.Part, Domain: power.DRAM, Kind: power.Energy, Every: 1e6}},
		Static: [power.DomainLimit]int64{power.DRAM: 3 * watt},
	})
	if uW, off, ok := m.IdlePower(power.Package); ok || uW != 0 || off != 0 {
		t.Errorf("idle power is known before the first reading: %d +- %d uW", uW, off)
	}
	given := energy.New(energy.Config{Static: [power.DomainLimit]int64{power.Rest: 1}})
	if uW, off, ok := given.IdlePower(power.Rest); !ok || uW != 1 || off != 0 {
		t.Errorf("of 1 uW that is given: %d +- %d uW, %v", uW, off, ok)
	}
	at, shown := int64(0), int64(0)
	tick := func(dram string) {
		at, shown = at+second, shown+50*watt
		rs := []power.Reading{{Meter: 0, At: at, Value: shown}, {Meter: 1, At: at, Value: shown / 10, Err: dram}}
		m.Tick(energy.Interval{At: at, Elapsed: second, Load: power.PPM / 2, CPUs: 4}, rs, rs)
	}
	check := func(want ...energy.State) {
		t.Helper()
		if got := m.States(); !slices.Equal(got, want) {
			t.Errorf("States() = %v, want %v", got, want)
		}
	}
	for range 3 {
		tick("")
	}
	check(energy.State{Meter: "rapl/package-0"}, energy.State{Meter: "rapl/package-0/dram"})
	tick("permission denied")
	check(energy.State{Meter: "rapl/package-0"}, energy.State{Meter: "rapl/package-0/dram", Reason: energy.Unreadable})
	if uW, off, ok := m.IdlePower(power.Package); !ok || uW <= 0 || uW > 50*watt || off <= 0 {
		t.Errorf("learned idle power %d ± %d uW, %v, want something up to 50 W", uW, off, ok)
	}
	if uW, off, ok := m.IdlePower(power.DRAM); !ok || uW != 3*watt || off != 0 {
		t.Errorf("given idle power %d ± %d uW, %v, want 3 W", uW, off, ok)
	}
}

// TestSimulated checks that simulated meters train models like real ones, with quality modelled.
func TestSimulated(t *testing.T) {
	const second, watt = int64(1e9), int64(1e6)
	of := func(from power.Origin) energy.DomainEnergy {
		m := energy.New(energy.Config{Meters: []power.Meter{{Name: "a", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: from, Every: 1e6}}})
		for i := range int64(100) {
			rs := []power.Reading{{At: i * second, Value: i * 50 * watt}}
			m.Tick(energy.Interval{At: i * second, Elapsed: second, Load: power.PPM / 2, CPUs: 4}, rs, rs)
		}
		return m.Latest().Domain[power.Package]
	}
	real, played := of(power.Powercap), of(power.Model)
	if real.Quality != usage.Measured || played.Quality != usage.Modelled {
		t.Errorf("quality %v and, simulated, %v; want measured and modelled", real.Quality, played.Quality)
	}
	if real.Energy != played.Energy || real.Idle != played.Idle || real.Energy != 50*watt || real.Error != played.Error {
		t.Errorf("%+v and, simulated, %+v: want the same figures", real, played)
	}
}

// TestAcceleratorAlone checks that with only a meter of an accelerator the curve covers the rest.
func TestAcceleratorAlone(t *testing.T) {
	const second, watt = int64(1e9), int64(1e6)
	m := energy.New(energy.Config{
		Meters: []power.Meter{{Name: "gpu/GPU-1", Level: power.Part, Domain: power.GPU, Kind: power.Energy, From: power.NVML, Every: 1e6}},
		Curve:  power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 40 * watt}, {Load: power.PPM, Power: 140 * watt}}, ErrorPPM: 100_000, Source: "curve"},
	})
	for i := range int64(20) {
		rs := []power.Reading{{At: i * second, Value: i * 300 * watt}}
		m.Tick(energy.Interval{At: i * second, Elapsed: second, Load: power.PPM / 2, CPUs: 4}, rs, rs)
	}
	gpu, rest := m.Latest().Domain[power.GPU], m.Latest().Domain[power.Rest]
	if gpu.Quality != usage.Measured || gpu.Energy != 300*watt || m.Source(power.GPU) != "gpu/GPU-1" {
		t.Errorf("the accelerator has %+v from %q, want 300 J, measured", gpu, m.Source(power.GPU))
	}
	if rest.Quality != usage.Modelled || rest.Energy != 90*watt || rest.Idle != 40*watt || m.Source(power.Rest) != "curve" {
		t.Errorf("the rest has %+v from %q, want 90 J by the curve", rest, m.Source(power.Rest))
	}
}
