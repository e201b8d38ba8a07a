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
