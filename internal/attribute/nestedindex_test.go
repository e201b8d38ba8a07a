package attribute

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestNestedIndex checks the nested sets against the inclusive resources in usage.
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
		t.Errorf("inclusive: counters %b and levels %b, want %b and %b", counters, levels, nestedSet, usage.SetOf(nestedLevels[:]...))
	}
	for i, r := range nestedCounters {
		if nestedIndex(r) != i {
			t.Errorf("nestedIndex(%v) = %d, want %d", r, nestedIndex(r), i)
		}
	}
	if i := nestedIndex(usage.NetworkRx); i != -1 {
		t.Errorf("nestedIndex of a counter without those below is %d, want -1", i)
	}
}
