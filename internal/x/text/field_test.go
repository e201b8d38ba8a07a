package text_test

import (
	"testing"

	"mete.dev/mete/internal/x/text"
)

// No field of CSV is a formula of a spreadsheet or controls a terminal; numbers stay.
func TestField(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "build": "build", "a=b": "a=b", "=cmd|calc!A1": "'=cmd|calc!A1", "+1+cmd": "'+1+cmd", "-2+3+cmd|x": "'-2+3+cmd|x", "@SUM(A1)": "'@SUM(A1)",
		"-x": "'-x", "-": "'-", "-5": "-5", "-5.25": "-5.25", "+1e9": "+1e9", "NaN": "NaN", "-Inf": "-Inf", "2026-01-01T00:00:00Z": "2026-01-01T00:00:00Z",
		"\t=cmd": "\uFFFD=cmd", "\r=cmd": "\uFFFD=cmd", "a\x1b[2J\a": "a\uFFFD[2J\uFFFD", "a\u202eb": "a\uFFFDb", "\xff": "\uFFFD", "e\u0301\u0301\u0301": "e\u0301\u0301\u0301",
	} {
		if got := text.Field(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
