package statedir_test

import (
	"testing"

	"mete.dev/mete/internal/x/statedir"
)

func TestDefault(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		uid  int
		want string
	}{
		{map[string]string{"METE_STATE": "/m", "XDG_STATE_HOME": "/x", "HOME": "/h"}, 0, "/m"},
		{map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, 0, "/var/lib/mete"},
		{map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, 7, "/x/mete"},
		{map[string]string{"XDG_STATE_HOME": "x", "HOME": "/h"}, 7, "/h/.local/state/mete"},
		{nil, 7, ""},
	} {
		got, err := statedir.Default(func(k string) string { return c.env[k] }, c.uid)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("Default(%v, %d) = %q, %v, want %q", c.env, c.uid, got, err, c.want)
		}
	}
}
