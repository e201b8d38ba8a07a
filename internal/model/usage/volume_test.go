package usage_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestMergeVolumes checks that the latest figures of a pod and a volume stay, of one time those of each size and of these the larger,
// also of merged windows, and that no memory is shared.
func TestMergeVolumes(t *testing.T) {
	first := usage.Window{Start: 1, End: 4, Volumes: []usage.VolumeUse{{Pod: "a", Volume: "x", At: 1, Used: 1}, {Pod: "a", Volume: "y", At: 2, Used: 5}, {Pod: "a", Volume: "y", At: 2, Used: 6, Size: 7}}}
	next := usage.Window{Start: 4, End: 9, Volumes: []usage.VolumeUse{{Pod: "b", Volume: "x", At: 5, Used: 3}, {Pod: "a", Volume: "y", At: 6, Used: 4},
		{Pod: "a", Volume: "y", At: 6, Used: 3}, {Pod: "a", Volume: "y", At: 6, Used: 2, Size: 9}}}
	sum := first
	sum.Merge(&next)
	want := []usage.VolumeUse{{Pod: "a", Volume: "x", At: 1, Used: 1}, {Pod: "b", Volume: "x", At: 5, Used: 3}, {Pod: "a", Volume: "y", At: 6, Used: 4}, {Pod: "a", Volume: "y", At: 6, Used: 2, Size: 9}}
	if !slices.Equal(sum.Volumes, want) {
		t.Errorf("%v, want %v", sum.Volumes, want)
	}
	clone := sum.Clone()
	sum.Volumes[0].Used, sum.Volumes[1].Used = 7, 8
	if first.Volumes[0].Used != 1 || first.Volumes[1].Used != 5 || next.Volumes[0].Used != 3 || !slices.Equal(clone.Volumes, want) {
		t.Errorf("%v, %v, %v", first.Volumes, next.Volumes, clone.Volumes)
	}
}
