package attribute_test

import (
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestEnergyOfStolenTick checks that a machine from which the hypervisor takes all CPU time draws, by its
// curve, what it does without load.
func TestEnergyOfStolenTick(t *testing.T) {
	t.Parallel()
	acc := attribute.New("n")
	acc.SetMeters(energy.New(energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 20 * watt}, {Load: power.PPM, Power: 90 * watt}}}}))
	for i := range int64(2) {
		s := two((i+1)*second, 0)
		s.Node.Steal = i * second * int64(s.Node.CPUs)
		if b := acc.Tick(s); b.Whole.Get(usage.CPU) != 0 || b.Whole.Get(usage.EnergyRest) != i*20*watt {
			t.Errorf("tick %d: %d uJ in %d ns of CPU time, want %d in 0", i, b.Whole.Get(usage.EnergyRest), b.Whole.Get(usage.CPU), i*20*watt)
		}
	}
}

// TestEnergyOfUnknownUse checks that the energy of a workload whose CPU time is not known is absent,
// while that of one which used none is zero.
func TestEnergyOfUnknownUse(t *testing.T) {
	t.Parallel()
	s := crowd(4)
	unknown, unused := s.Groups[2], s.Groups[3]
	unknown.Has &^= usage.SetOf(usage.CPU)
	accounts := attribute.New("n")
	accounts.SetMeters(energy.New(packages))
	s.Before = []power.Reading{{}}
	var w usage.Window
	for range 2 {
		s.At += 1e9
		s.Mono = s.At
		s.Groups[1].Value[usage.CPU] += 1e8
		metered(s)
		accounts.Tick(s)
	}
	accounts.CloseWindow(&w)
	seen := 0
	for i := range w.Rows {
		r := &w.Rows[i]
		v, ok := r.Usage.Get(usage.EnergyPackage)
		off, hasError := r.Usage.Get(usage.EnergyError)
		switch r.Workload.ID {
		case unknown.Workload.ID:
			if ok || hasError {
				t.Errorf("unknown use: energy %d uJ ± %d, want none", v, off)
			}
		case unused.Workload.ID:
			if !ok || !hasError || v != 0 {
				t.Errorf("no use: energy %d uJ (%v) ± (%v), want 0", v, ok, hasError)
			}
		default:
			continue
		}
		seen++
	}
	if seen != 2 {
		t.Errorf("%d of 2 workloads have rows", seen)
	}
}
