package unit

import (
	"fmt"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// ParseSeconds parses a duration: a Go duration ("500ms", "1m30s") or a number of seconds ("2",
// "0.5"). The error wraps fault.ErrInvalid.
func ParseSeconds(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > -1e9 && v < 1e9) {
		return 0, fault.WithHint(fmt.Errorf("time %q: %w", s, fault.ErrInvalid), `write "2s", "500ms" or a number of seconds`)
	}
	return time.Duration(v * float64(time.Second)), nil
}
