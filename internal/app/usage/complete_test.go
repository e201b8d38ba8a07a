package usage_test

import (
	"strings"
	"testing"
	"time"
)

// The shell completes dimensions, and from the server their values in the range of the flags. A name that is not a plain
// word for a shell is left out.
func TestCompletion(t *testing.T) {
	b := &book{}
	for line, want := range map[string]string{
		"usage --where jo":                                "job=\nworkload=\nnode=",
		"usage --where job=":                              "job=web\n:36",
		"usage --where job=w":                             "job=web\n:36",
		"workloads --where user=w":                        "user=web\n:36",
		"usage --where kind=":                             "kind=idle\nkind=web\nkind=system\n:36",
		"runs w":                                          "web\n:36",
		"runs web ":                                       ":36",
		"runs --where node=s --from 2026-01-01 ":          "web\n:36",
		"usage --where nothing=":                          ":36",
		"usage --from never --where job=":                 ":36",
		"usage --server https://127.0.0.1:1 --where job=": ":36",
	} {
		words := strings.Split(line, " ")
		out, err := mete(t, b, append([]string{"__complete"}, words...)...)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%q: %v, %q, want %q", line, err, out, want)
		}
	}
	if _, err := mete(t, b, "__complete", "runs", "--from", "2026-01-01", ""); err != nil {
		t.Error(err)
	}
	if at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.Local); !b.asked.From.Equal(at) {
		t.Errorf("the range begins at %v, want %v", b.asked.From, at)
	}
}
