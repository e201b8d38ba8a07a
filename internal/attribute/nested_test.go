package attribute

import (
	"testing"

	"mete.dev/mete/internal/meter"
)

// What the list of resources says is inclusive is known here too.
func TestNested(t *testing.T) {
	var counters, levels meter.Set
	meter.All.Each(func(r meter.Resource) {
		switch d := r.Detail(); {
		case !d.Inclusive:
		case d.Kind == meter.Counter:
			counters |= meter.SetOf(r)
		case d.Kind == meter.Integral:
			levels |= meter.SetOf(r)
		}
	})
	if counters != nestedSet || levels != meter.SetOf(held[:]...) {
		t.Errorf("inclusive are counters %b and levels %b, not %b and %b", counters, levels, nestedSet, meter.SetOf(held[:]...))
	}
	for i, r := range nested {
		if nest(r) != i {
			t.Errorf("nest(%v) = %d, want %d", r, nest(r), i)
		}
	}
}
