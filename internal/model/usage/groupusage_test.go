package usage_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
)

// TestGroupUsage checks that a GroupUsage adds up as a Usage does.
func TestGroupUsage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var want usage.Usage
		var got usage.GroupUsage
		resource := rapid.SampledFrom(slices.Collect((usage.Metered &^ usage.Apart).All()))
		for range rapid.IntRange(1, 4).Draw(t, "parts") {
			var part usage.Usage
			var group usage.GroupUsage
			for _, r := range rapid.SliceOf(resource).Draw(t, "resources") {
				v := rapid.Int64Range(0, 1000).Draw(t, "amount")
				q := usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality"))
				part.Put(r, v, q)
				group.Put(r, v, q)
			}
			part.Covered, group.Covered = 5, 5
			want.Add(&part)
			got.Add(&group)
		}
		if got.Usage() != want || want.OfGroup() != got {
			t.Fatalf("%+v, want %+v", got, want)
		}
		cpu, ok := got.Get(usage.CPU)
		if v, there := want.Get(usage.CPU); cpu != v || ok != there {
			t.Fatalf("CPU %d, %v; want %d, %v", cpu, ok, v, there)
		}
	})
	var more usage.Usage
	more.Put(usage.CPU, 1, usage.Measured)
	of := more.OfGroup()
	more.Put(usage.NetworkRxZone, 2, usage.Modelled)
	more.Put(usage.CPUReserved, 3, usage.Measured)
	if more.OfGroup() != of {
		t.Errorf("%+v, want %+v", more.OfGroup(), of)
	}
}
