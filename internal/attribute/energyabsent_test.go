package attribute_test

import (
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

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
