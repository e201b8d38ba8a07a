package attribute

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// What the list of resources says is inclusive is known here too.
func TestNestedIndex(t *testing.T) {
	var counters, levels usage.Set
	usage.All.Each(func(r usage.Resource) {
		switch d := r.Detail(); {
		case !d.Inclusive:
		case d.Kind == usage.Counter:
			counters |= usage.SetOf(r)
		case d.Kind == usage.Integral:
			levels |= usage.SetOf(r)
		}
	})
	if counters != nestedSet || levels != usage.SetOf(nestedLevels[:]...) {
		t.Errorf("inclusive are counters %b and levels %b, not %b and %b", counters, levels, nestedSet, usage.SetOf(nestedLevels[:]...))
	}
	for i, r := range nestedCounters {
		if nestedIndex(r) != i {
			t.Errorf("nest(%v) = %d, want %d", r, nestedIndex(r), i)
		}
	}
}
