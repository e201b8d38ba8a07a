package powersim_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const watt = 1_000_000 // uW

// slice is the length of a step in these tests, ns.
const slice = int64(20 * time.Millisecond)

// server returns one package with memory, its cores as a part, and psys.
func server(model powersim.PowerModel) []powersim.Zone {
	half := model
	half.Idle, half.Core = model.Idle/2, model.Core/4
	return []powersim.Zone{
		{ID: "intel-rapl:0", Name: "package-0", Domain: power.Package, Model: model},
		{ID: "intel-rapl:0:0", Name: "core", Model: half},
		{ID: "intel-rapl:0:1", Name: "dram", Domain: power.DRAM, Model: half},
		{ID: "intel-rapl:1", Name: "psys", Domain: power.Rest, Model: powersim.PowerModel{Idle: 5 * watt, Core: watt}, Includes: []string{"intel-rapl:0", "intel-rapl:0:1"}},
	}
}

func newMachine(t interface{ Fatal(...any) }, zones []powersim.Zone, faults []powersim.Fault, loads int) *powersim.Machine {
	m, err := powersim.NewMachine(zones, faults, loads, 7, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func near(a, b, off int64) bool { return a-b <= off && b-a <= off }

// Meters and loads account for the same energy, with any faults.
func TestEnergyConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := powersim.PowerModel{
			Idle:     rapid.Int64Range(0, 100*watt).Draw(t, "idle"),
			Core:     rapid.Int64Range(0, 50*watt).Draw(t, "core"),
			Exponent: rapid.Float64Range(0.3, 1.5).Draw(t, "bend"),
			Noise:    rapid.Float64Range(0, 0.5).Draw(t, "noise"),
		}
		loads := rapid.IntRange(0, 5).Draw(t, "loads")
		m := newMachine(t, server(model), nil, loads)
		at, all := int64(1000), int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			ns := rapid.Int64Range(1, 1e9).Draw(t, "ns")
			cpu := make([]int64, loads)
			for i := range cpu {
				cpu[i] = rapid.Int64Range(0, ns).Draw(t, "cpu")
			}
			whole := rapid.Int64Range(0, 4*ns).Draw(t, "whole")
			at, all = at+ns, all+whole
			m.Step(at, cpu, whole)
		}
		now := m.Record()
		shown := func(zone int) int64 { v, _ := m.Value(zone); return v }
		off := int64(loads + 3)
		if got, want := now.Total(power.Package), shown(0); !near(got, want, off) {
			t.Errorf("package: loads and idle took %d uJ, the meter shows %d", got, want)
		}
		if got, want := now.Total(power.DRAM), shown(2); !near(got, want, off) {
			t.Errorf("dram: %d uJ, the meter shows %d", got, want)
		}
		parts := now.Total(power.Package) + now.Total(power.DRAM)
		if got, want := now.Total(power.Rest), shown(3)-parts; !near(got, want, 3*off) {
			t.Errorf("rest: %d uJ, psys shows %d above its parts", got, want)
		}
		sum := int64(0)
		for i, c := range now.CPU {
			sum += c
			for d, uJ := range now.Active[i] {
				if c == 0 && uJ != 0 {
					t.Errorf("load %d took %d uJ of %v without CPU", i, uJ, power.Domain(d))
				}
			}
		}
		if sum < all {
			t.Errorf("%d ns of CPU were used, and %d booked", all, sum)
		}
	})
}

func TestPowerModel(t *testing.T) {
	concave := powersim.PowerModel{Idle: 10 * watt, Core: 10 * watt, Exponent: 0.7}
	for cores, want := range map[float64]float64{0: 0, 1: 10, 2: 16.245, 8: 42.871} {
		idle, active := concave.Power(cores)
		if idle != 10*watt || math.Abs(active/watt-want) > 1e-3 {
			t.Errorf("%v cores: %v + %v uW, want 10 + %v W", cores, idle, active, want)
		}
	}
	// Two loads, 3 and 1 of four cores, for a second; then nothing for one.
	m := newMachine(t, server(powersim.PowerModel{Idle: 10 * watt, Core: 5 * watt}), nil, 2)
	at := int64(1000)
	for range 50 {
		at += slice
		m.Step(at, []int64{2 * slice, slice}, 4*slice)
	}
	for range 50 {
		at += slice
		m.Step(at, []int64{0, 0}, 0)
	}
	now := m.Record()
	for i, want := range []int64{10e6, 5e6, 5e6} {
		if got := now.Active[i][power.Package]; !near(got, want, 2) {
			t.Errorf("load %d took %d uJ, want %d", i, got, want)
		}
	}
	if got := now.Idle[power.Package]; !near(got, 20e6, 2) {
		t.Errorf("idle: %d uJ in 2 s, want 20 J", got)
	}
	if now.CPU[0] != 2e9 || now.CPU[2] != 1e9 || now.At != 1000+2e9 {
		t.Errorf("%+v, want 2, 1 and 1 s of CPU in 2 s", now)
	}
}

// Noise changes the energy by about its standard deviation, and the loads are charged for
// it.
func TestNoise(t *testing.T) {
	m := newMachine(t, server(powersim.PowerModel{Core: 10 * watt, Noise: 0.1}), nil, 1)
	at := int64(1000)
	var last int64
	var squares float64
	const n = 5000
	for range n {
		at += slice
		m.Step(at, []int64{slice}, slice)
		uJ := m.Record().Active[0][power.Package]
		off := float64(uJ-last)/2e5 - 1 // 10 W for 20 ms
		squares += off * off
		last = uJ
	}
	if dev := math.Sqrt(squares / n); dev < 0.07 || dev > 0.13 {
		t.Errorf("standard deviation %.3f, want about 0.1", dev)
	}
}

// The use of loads beyond the total is subtracted from the others' next steps, because the
// two are not read at one instant.
func TestOthers(t *testing.T) {
	m := newMachine(t, server(powersim.PowerModel{Core: watt}), nil, 1)
	m.Step(1000+slice, []int64{slice}, slice/2)
	m.Step(1000+2*slice, []int64{0}, slice)
	if got := m.Record().CPU; got[0] != slice || got[1] != slice/2 {
		t.Errorf("CPU %v, want %d and %d", got, slice, slice/2)
	}
}

func TestFaults(t *testing.T) {
	// A watt: 20,000 uJ a step.
	zones := []powersim.Zone{{ID: "z", Domain: power.Package, Model: powersim.PowerModel{Idle: watt}, Start: 50_000, Range: 99_999}}
	for name, tt := range map[string]struct {
		fault powersim.Fault
		want  [6]int64 // after each step, -1 for unreadable
	}{
		"none":  {powersim.Fault{From: time.Hour}, [6]int64{70_000, 90_000, 10_000, 30_000, 50_000, 70_000}},
		"stall": {powersim.Fault{Kind: powersim.Stall, From: 40 * time.Millisecond, To: 100 * time.Millisecond}, [6]int64{70_000, 90_000, 90_000, 90_000, 50_000, 70_000}},
		"lose":  {powersim.Fault{Kind: powersim.Lose, From: 40 * time.Millisecond, To: 100 * time.Millisecond}, [6]int64{70_000, 90_000, 90_000, 90_000, 90_000, 10_000}},
		"fail":  {powersim.Fault{Kind: powersim.Fail, From: 40 * time.Millisecond, To: 80 * time.Millisecond}, [6]int64{70_000, -1, -1, 30_000, 50_000, 70_000}},
		"reset": {powersim.Fault{Kind: powersim.Reset, From: 40 * time.Millisecond}, [6]int64{70_000, 0, 20_000, 40_000, 60_000, 80_000}},
		"jump":  {powersim.Fault{Kind: powersim.Jump, From: 40 * time.Millisecond, Amount: 5000}, [6]int64{70_000, 95_000, 15_000, 35_000, 55_000, 75_000}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.fault.Zone = "z"
			m := newMachine(t, zones, []powersim.Fault{tt.fault}, 0)
			var got [6]int64
			for i := range got {
				m.Step(1000+int64(i+1)*slice, nil, 0)
				v, ok := m.Value(0)
				if got[i] = v; !ok {
					got[i] = -1
				}
			}
			if got != tt.want {
				t.Errorf("showed %d, want %d", got, tt.want)
			}
			if used := m.Record().Total(power.Package); used != 120_000 {
				t.Errorf("%d uJ were used, want 120000 whatever the meter shows", used)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	for name, zones := range map[string][]powersim.Zone{
		"no id":                 {{}},
		"twice":                 {{ID: "a"}, {ID: "a"}},
		"includes a later zone": {{ID: "a", Includes: []string{"b"}}, {ID: "b"}},
		"domain":                {{ID: "a", Domain: power.DomainLimit}},
		"bend":                  {{ID: "a", Model: powersim.PowerModel{Exponent: -1}}},
	} {
		if _, err := powersim.NewMachine(zones, nil, 0, 1, 0); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	if _, err := powersim.NewMachine(nil, []powersim.Fault{{Zone: "a"}}, 0, 1, 0); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("fault of an unknown zone: %v, want invalid", err)
	}
}
