package secretenv_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/x/secretenv"
)

// Strip removes every occurrence of a token and keeps everything else.
func TestStrip(t *testing.T) {
	env := []string{
		"PATH=/bin", "METE_TOKEN=mete_a", "METE_TOKENS=kept", "METE_UPSTREAM_TOKEN=mete_b", "METE_SERVER=https://s", "METE_TOKEN=mete_c",
		"METE_SELF_URL=u", "METE_SELF_TOKEN=t", "METE_SELF_TOKEN_FILE=f", "METE_SELF_CA=c", "EMPTY=", "odd",
	}
	before := slices.Clone(env)
	if got, want := secretenv.Strip(env), []string{"PATH=/bin", "METE_TOKENS=kept", "METE_SERVER=https://s", "EMPTY=", "odd"}; !slices.Equal(got, want) {
		t.Errorf("Strip(%q) = %q, want %q", env, got, want)
	}
	if !slices.Equal(env, before) {
		t.Errorf("Strip changed its argument to %q", env)
	}
}
