package socket_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/job/socket"
)

// TestMarkDirs checks where a job looks for the mark of an agent: also where a reboot leaves it.
func TestMarkDirs(t *testing.T) {
	for _, x := range []struct {
		env  map[string]string
		uid  int
		want []string
	}{
		{nil, 0, []string{"/run/mete", "/var/lib/mete", "/var/lib/mete"}},
		{nil, 1000, []string{"/run/mete", "/var/lib/mete"}},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/u"}, 1000, []string{"/run/mete", "/run/user/1000/mete", "/var/lib/mete", "/home/u/.local/state/mete"}},
	} {
		if got := socket.MarkDirs(func(k string) string { return x.env[k] }, x.uid); !slices.Equal(got, x.want) {
			t.Errorf("MarkDirs(%v, %d) = %q, want %q", x.env, x.uid, got, x.want)
		}
	}
}
