package usage

import "testing"

func TestHarmless(t *testing.T) {
	if got, want := string(escapeControl([]byte("a\x1b[2J\n\u009b1m,\u202e\n"))), "a\uFFFD[2J\n\uFFFD1m,\uFFFD\n"; got != want {
		t.Errorf("harmless = %q, want %q", got, want)
	}
}
