package usage_test

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
)

func TestScope(t *testing.T) {
	if s := usage.ScopeOf(1); s != usage.Machine {
		t.Errorf("the root is %q", s)
	}
	if s := usage.ScopeOf(18446744073709551615); s != "cgroup:18446744073709551615" || !s.IsValid() {
		t.Errorf("a group is %q", s)
	}
	for _, s := range []usage.Scope{"", "/"} {
		if !s.IsValid() {
			t.Errorf("%q is not valid", s)
		}
	}
	for _, s := range []usage.Scope{"cgroup:", "cgroup:1", "cgroup:07", "cgroup:+7", "7", "cgroup:x", "cgroup:18446744073709551616", "//", "cgroup:cgroup:7"} {
		if s.IsValid() {
			t.Errorf("%q is valid", s)
		}
	}
}

func TestAncestors(t *testing.T) {
	var many []uint64
	for i := range uint64(2 * usage.MaxAncestors) {
		many = append(many, 100+i)
	}
	// Servers of other versions refuse more.
	if n := len(usage.AncestorsOf(3, many...).Scopes()); n != 32 {
		t.Errorf("%d groups of many, want 32", n)
	}
	for _, c := range []struct {
		ids  []uint64
		want usage.Ancestors
	}{{nil, "3:"}, {[]uint64{1}, "3:"}, {[]uint64{9, 8, 1}, "3:9,8"}, {[]uint64{18446744073709551615}, "3:18446744073709551615"}} {
		a := usage.AncestorsOf(3, c.ids...)
		if a != c.want || !a.IsValid() {
			t.Errorf("%v: %q, valid %v, want %q", c.ids, a, a.IsValid(), c.want)
		}
	}
	if a := usage.AncestorsOf(12, 7); a != "12:7" || !a.IsValid() {
		t.Errorf("a group of hierarchy 12 is %q", a)
	}
	if a := usage.Ancestors(""); !a.IsValid() || a.Scopes() != nil {
		t.Errorf("none: valid %v, %v", a.IsValid(), a.Scopes())
	}
	for _, a := range []usage.Ancestors{"3", ":", "x:", "3:1", "3:7,", "3:,7", "3:07", "3: 7", "03:7", "-1:7", "3:x", "3:7;8", "4294967296:7", usage.AncestorsOf(3, many...) + ",7"} {
		if a.IsValid() {
			t.Errorf("%q is valid", a)
		}
	}
}

func TestLevelIn(t *testing.T) {
	part := func(scope usage.Scope, a usage.Ancestors) usage.Extent {
		return usage.Extent{Scope: scope, Ancestors: a}
	}
	job := part("cgroup:7", "0:8,9")
	for name, c := range map[string]struct {
		inner, outer usage.Extent
		level        int
		within       bool
	}{
		"machine":                 {job, part("/", ""), usage.MaxAncestors, true},
		"machine, older sender":   {part("", ""), part("/", ""), usage.MaxAncestors, true},
		"parent":                  {job, part("cgroup:8", "0:9"), 0, true},
		"parent's parent":         {job, part("cgroup:9", "0:"), 1, true},
		"in a namespace":          {part("cgroup:7", "0:"), part("cgroup:8", "0:9"), 0, false},
		"beside":                  {job, part("cgroup:6", "0:8,9"), 0, false},
		"itself":                  {job, job, 0, false},
		"below":                   {part("cgroup:8", "0:9"), job, 0, false},
		"another hierarchy":       {job, part("cgroup:8", "2:9"), 0, false},
		"no number":               {part("cgroup:7", "0:8,x"), part("cgroup:8", "0:9"), 0, false},
		"no hierarchy":            {part("cgroup:7", "4294967296:8,9"), part("cgroup:8", "0:9"), 0, false},
		"older outer meter":       {job, part("cgroup:8", ""), 0, false},
		"older inner meter":       {part("cgroup:7", ""), part("cgroup:8", "0:"), 0, false},
		"some of a group":         {part("cgroup:8", "0:8,9"), part("cgroup:8", "0:9"), 0, true},
		"some of a group's child": {part("cgroup:7", "0:7,8,9"), part("cgroup:8", "0:9"), 1, true},
		"some of the same group":  {part("cgroup:8", "0:8,9"), part("cgroup:8", "0:8,9"), 0, false},
		"in some of a group":      {job, part("cgroup:8", "0:8,9"), 0, false},
	} {
		level, within := c.inner.LevelIn(c.outer)
		if within != c.within || within && level != c.level {
			t.Errorf("%s: %v is in %v: %v, %d; want %v, %d", name, c.inner, c.outer, within, level, c.within, c.level)
		}
	}
}
