package v1_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	v1 "mete.dev/mete/internal/api/v1"
)

// TestSecondsLimits reads lengths that no int64 of nanoseconds holds.
func TestSecondsLimits(t *testing.T) {
	for text, want := range map[string]v1.Seconds{
		"0": 0, "1.5": v1.Seconds(1500 * time.Millisecond), "-2": v1.Seconds(-2 * time.Second), "1e-9": 1,
		"9223372036.854775807": math.MaxInt64, "1e300": math.MaxInt64, "-1e300": math.MinInt64,
	} {
		var s v1.Seconds
		if err := json.Unmarshal([]byte(text), &s); err != nil || s != want {
			t.Errorf("%s: %d, %v, want %d", text, s, err, want)
		}
	}
}
