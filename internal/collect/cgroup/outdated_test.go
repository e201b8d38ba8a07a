package cgroup

import "testing"

// A search may find the life that is under a path now before the births and
// deaths of those before it are told: they are no news.
func TestOutdated(t *testing.T) {
	tr := &tree{byPath: map[string]*node{"/a": {}, "/fake": {}, "/other": {}}}
	tr.byPath["/a"].id[0], tr.byPath["/fake"].id[0] = 7, fake+1
	for _, c := range []struct {
		path string
		id   uint64
		want bool
	}{
		{"/a", 6, true}, {"/a", 7, false}, {"/a", 8, false},
		{"/fake", 6, false}, {"/other", 6, false}, {"/new", 6, false},
	} {
		if got := outdated(tr, c.path, c.id); got != c.want {
			t.Errorf("outdated(%s, %d) = %v, want %v", c.path, c.id, got, c.want)
		}
	}
}
