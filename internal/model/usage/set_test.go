package usage_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestSetAll checks that a set gives each of its resources once, in order, and stops when the loop
// ends.
func TestSetAll(t *testing.T) {
	for _, want := range [][]usage.Resource{nil, {usage.CPU}, {usage.CPU, usage.CPUUser, usage.CPUSystem}, {usage.CPUUser, usage.Memory, usage.Limit - 1}} {
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

// TestMeteredLimit checks that the numbers of all metered resources are below the limit, and that it
// is no larger than that takes.
func TestMeteredLimit(t *testing.T) {
	if usage.Metered>>usage.MeteredLimit != 0 || !usage.Metered.Has(usage.MeteredLimit-1) {
		t.Errorf("of the resources %b the limit is %d", usage.Metered, usage.MeteredLimit)
	}
}
