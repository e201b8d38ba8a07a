package cgroup

import "testing"

// A search may find the present life of a path before the births and deaths of earlier
// lives, and of groups below those, are drained: they are outdated.
func TestIsOutdated(t *testing.T) {
	tr := &tree{byPath: map[string]*node{"/": {}, "/a": {}, "/fake": {}, "/other": {}}}
	tr.byPath["/"].id[0], tr.byPath["/a"].id[0], tr.byPath["/fake"].id[0] = 1, 7, fakeID+1
	for _, c := range []struct {
		path       string
		id, parent uint64
		want       bool
	}{
		{"/a", 6, 1, true}, {"/a", 7, 1, false}, {"/a", 8, 1, false},
		{"/fake", 6, 1, false}, {"/other", 6, 1, false}, {"/new", 6, 1, false},
		{"/a/b", 8, 7, false}, {"/a/b", 6, 5, true}, {"/fake/b", 8, 6, false}, {"/gone/b", 8, 6, true},
	} {
		if got := isOutdated(tr, c.path, c.id, c.parent); got != c.want {
			t.Errorf("isOutdated(%s, %d, %d) = %v, want %v", c.path, c.id, c.parent, got, c.want)
		}
	}
}
