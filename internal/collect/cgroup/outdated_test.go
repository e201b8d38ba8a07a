package cgroup

import "testing"

// A search may find the life that is under a path now before the births and
// deaths of those before it are told, and of what was below those: they are no
// news.
func TestOutdated(t *testing.T) {
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
			t.Errorf("outdated(%s, %d, %d) = %v, want %v", c.path, c.id, c.parent, got, c.want)
		}
	}
}
