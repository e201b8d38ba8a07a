package exclusive

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const ledger = "0123456789abcdef"

// Two scopes overlap if one is the other or contains it.
func TestOverlaps(t *testing.T) {
	group := func(path string) Scope { return Scope{Path: path} }
	for _, c := range []struct {
		s, o      Scope
		holder    int
		ancestors []int
		want      bool
	}{
		{s: group("/"), o: group("/"), want: true},
		{s: group("/"), o: group("/a/mete-run-1"), want: true},
		{s: group("/a/mete-run-1"), o: group("/"), want: true},
		{s: group("/a/mete-run-1"), o: group("/a/mete-run-1"), want: true},
		{s: group("/a/mete-run-1"), o: group("/a/mete-run-12")},
		{s: group("/a/mete-run-1"), o: group("/b/mete-run-1")},
		{s: group("/a/mete-run-1/mete-run-2"), o: group("/a/mete-run-1"), want: true},
		{s: Scope{"/a", 7}, o: group("/"), want: true},
		{s: Scope{"/a", 7}, o: group("/a/b"), holder: 3},
		{s: Scope{"/a/b", 7}, o: group("/a"), holder: 3, want: true},
		{s: Scope{"/a", 7}, o: Scope{"/a", 8}, holder: 8, ancestors: []int{5, 1}},
		{s: Scope{"/a", 7}, o: Scope{"/a", 8}, holder: 8, ancestors: []int{5, 8, 1}, want: true},
		{s: group("/a/x"), o: Scope{"/a", 8}, holder: 8, ancestors: []int{5, 8, 1}, want: true},
		{s: group("/a/x"), o: Scope{"/a", 8}, holder: 8, ancestors: []int{5, 1}},
		{s: group("/"), o: Scope{"/a", 8}, holder: 8, want: true},
	} {
		if got := c.s.overlaps(c.o, c.holder, c.ancestors); got != c.want {
			t.Errorf("%+v and %+v of %d: %v, want %v", c.s, c.o, c.holder, got, c.want)
		}
	}
}

// For any path, a name fits into a socket address and is one word of /proc/net/unix, and
// the parsed scope overlaps with all scopes above and below. Long paths stay distinct.
func TestNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		component := rapid.OneOf(rapid.StringMatching(`[a-z]{1,8}`), rapid.StringMatching(`[a-zA-Z0-9_.:@! -]{1,60}`), rapid.StringMatching(`[^/\x00]{1,20}`))
		list := rapid.SliceOfN(component, 0, 9).Draw(t, "path")
		s := Scope{Path: "/" + strings.Join(list, "/")}
		nonce := rapid.StringMatching(`([a-z2-7]{8})?`).Draw(t, "nonce")
		read := func(s Scope) Scope {
			text := name(ledger, s, nonce)
			if len(text) > nameLimit || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Fatalf("%q, of %d bytes", text, len(text))
			}
			o, ok := parse(text, ledger)
			if !ok || o.Tree != s.Tree {
				t.Fatalf("%q is read as %+v", text, o)
			}
			return o
		}
		o := read(s)
		if _, ok := parse(name(ledger, s, ""), "fedcba9876543210"); ok {
			t.Fatal("the name parses for another ledger too")
		}
		if len(list) > 7 {
			return // one hash stands for the deeper components
		}
		n := rapid.IntRange(0, len(list)).Draw(t, "above")
		above := Scope{Path: "/" + strings.Join(list[:n], "/")}
		if !s.overlaps(o, 0, nil) || !above.overlaps(o, 0, nil) || !s.overlaps(read(above), 0, nil) {
			t.Fatalf("%q does not overlap with itself and %q", s.Path, above.Path)
		}
		beside := Scope{Path: above.Path + "/" + component.Draw(t, "beside")}
		if n < len(list) && components(beside.Path) != nil && !contains(beside.Path, s.Path) && beside.overlaps(o, 0, nil) {
			t.Fatalf("%q overlaps with %q", beside.Path, s.Path)
		}
		if got := read(Scope{s.Path, 4711}); got.Tree != 4711 {
			t.Fatalf("tree %d", got.Tree)
		}
	})
}
