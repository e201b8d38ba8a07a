package text_test

import (
	"testing"

	"mete.dev/mete/internal/x/text"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain name":                "plain name",
		"\x1b[31mred":               "\uFFFD[31mred",
		"a\nb\u2028c\u00a0":         "a\uFFFDb\uFFFDc\uFFFD",
		"\u202erev":                 "\uFFFDrev",
		"\xff":                      "\uFFFD",
		"naïve 日本":                  "naïve 日本",
		"e\u0301\u0301\u0301\u0301": "e\u0301\u0301",
		"\u0301x":                   "x",
	} {
		if got := text.Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}
