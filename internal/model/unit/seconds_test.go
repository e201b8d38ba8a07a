package unit_test

import (
	"errors"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

func TestParseSeconds(t *testing.T) {
	for in, want := range map[string]time.Duration{"2": 2 * time.Second, "0.5": time.Second / 2, "500ms": time.Second / 2, "1m30s": 90 * time.Second} {
		if got, err := unit.ParseSeconds(in); got != want || err != nil {
			t.Errorf("ParseSeconds(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "NaN", "1e30", "2 s"} {
		if got, err := unit.ParseSeconds(in); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseSeconds(%q) = %v, %v, want invalid", in, got, err)
		}
	}
}
