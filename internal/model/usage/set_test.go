package usage_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestSetAll checks that a set gives each of its resources once, in order, and stops when the loop
// ends. Sets come from other programs, so that number 0 may be in them.
func TestSetAll(t *testing.T) {
	for _, want := range [][]usage.Resource{nil, {usage.CPU}, {0, usage.CPU}, {usage.CPU, usage.CPUUser, usage.CPUSystem}, {usage.CPUUser, usage.Memory, usage.Limit - 1}} {
		s := usage.SetOf(want...)
		if got := slices.Collect(s.All()); !slices.Equal(got, want) {
			t.Errorf("%b has %v, want %v", s, got, want)
		}
		for r := range s.All() {
			if r != want[0] {
				t.Errorf("%b goes on to %v", s, r)
			}
			break
		}
	}
}

// TestEnergyOf checks which resource the energy of a domain is.
func TestEnergyOf(t *testing.T) {
	for d, want := range map[power.Domain]usage.Resource{power.Package: usage.EnergyPackage, power.DRAM: usage.EnergyDRAM, power.GPU: usage.EnergyGPU, power.Rest: usage.EnergyRest} {
		if got := usage.EnergyOf(d); got != want || !slices.Contains(usage.Energies[:], got) {
			t.Errorf("the energy of domain %v is %v, want %v", d, got, want)
		}
	}
}

// TestNoResource checks that a number of no resource has no description.
func TestNoResource(t *testing.T) {
	for _, r := range []usage.Resource{0, usage.Limit, 255} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("resource %d has a description", r)
				}
			}()
			_ = r.Detail()
		}()
	}
}

// TestReadingLimit checks that the numbers of all resources of readings are below the limit, and that it
// is no larger than that takes.
func TestReadingLimit(t *testing.T) {
	read := usage.Metered &^ usage.Apart
	if read>>usage.ReadingLimit != 0 || !read.Has(usage.ReadingLimit-1) {
		t.Errorf("of the resources %b the limit is %d", read, usage.ReadingLimit)
	}
}
