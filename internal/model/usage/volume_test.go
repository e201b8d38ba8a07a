package usage_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestMergeVolumes checks that the later figure of a pod and a volume stays, also of merged windows, and that no memory is shared.
func TestMergeVolumes(t *testing.T) {
	first := usage.Window{Start: 1, End: 2, Volumes: []usage.VolumeUse{{Pod: "a", Volume: "x", Used: 1}, {Pod: "a", Volume: "y", Used: 2}}}
	next := usage.Window{Start: 2, End: 3, Volumes: []usage.VolumeUse{{Pod: "b", Volume: "x", Used: 3}, {Pod: "a", Volume: "y", Used: 4}}}
	sum := first
	sum.Merge(&next)
	want := []usage.VolumeUse{{Pod: "a", Volume: "x", Used: 1}, {Pod: "a", Volume: "y", Used: 4}, {Pod: "b", Volume: "x", Used: 3}}
	if !slices.Equal(sum.Volumes, want) {
		t.Errorf("%v, want %v", sum.Volumes, want)
	}
	clone := sum.Clone()
	sum.Volumes[0].Used, sum.Volumes[2].Used = 7, 8
	if first.Volumes[0].Used != 1 || first.Volumes[1].Used != 2 || next.Volumes[0].Used != 3 || !slices.Equal(clone.Volumes, want) {
		t.Errorf("%v, %v, %v", first.Volumes, next.Volumes, clone.Volumes)
	}
}
