package attribute

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestSlots checks that each resource with a slot has one of its own.
func TestSlots(t *testing.T) {
	t.Parallel()
	seen := map[[2]int]usage.Resource{}
	count := [2]int{}
	own := func(table int, r usage.Resource, place uint8, last int) {
		k := [2]int{table, int(place)}
		if other, ok := seen[k]; ok || int(place) >= last-1 {
			t.Errorf("%s shares its slot with %d", r, other)
		}
		seen[k] = r
		count[table]++
	}
	for r := range (usage.Metered &^ usage.Apart).All() {
		d := r.Detail()
		if d.Inclusive && d.Kind != usage.Peak {
			own(0, r, nestedSlot[r], nestedSlots)
		}
		if d.Kind == usage.Integral {
			own(1, r, levelSlot[r], levelSlots)
		}
	}
	if count[0] != nestedSlots-1 || count[1] != levelSlots-1 {
		t.Errorf("%v resources have a slot, of %d and %d", count, nestedSlots, levelSlots)
	}
}
