package usage_test

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestReasons checks the words of reasons, which are stored: they are written out here once more, so that no edit
// of the list moves one unseen.
func TestReasons(t *testing.T) {
	for i, word := range []string{"unknown", "rebooted", "unwatched", "overflow", "corrupt", "forgotten", "state-lost", "refused", "killed", "meter-failed", "overlapped"} {
		r := usage.Reason(i)
		text, err := r.MarshalText()
		if err != nil || string(text) != word {
			t.Errorf("reason %d is %q, %v, want %q", r, text, err, word)
		}
		var got usage.Reason
		if err := got.UnmarshalText([]byte(word)); err != nil || got != r {
			t.Errorf("%q is reason %d, %v, want %d", word, got, err, r)
		}
	}
	if got := usage.ParseReason("later"); got != usage.UnknownReason {
		t.Errorf("another word is reason %v", got)
	}
}
