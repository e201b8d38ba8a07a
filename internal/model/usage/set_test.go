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

// TestReadingLimit checks that the numbers of all resources of readings are below the limit, and that it
// is no larger than that takes.
func TestReadingLimit(t *testing.T) {
	read := usage.Metered &^ usage.Classified
	if read>>usage.ReadingLimit != 0 || !read.Has(usage.ReadingLimit-1) {
		t.Errorf("of the resources %b the limit is %d", read, usage.ReadingLimit)
	}
}
