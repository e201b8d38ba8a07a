//go:build torture

package replicate

import (
	"os"
	"time"
)

// tune looks for something to tell more often, where METE_TORTURE_UPSTREAM is how
// often, does not wait until minutes are over, and tries again as soon: so that
// much happens between two deaths.
func (c Config) tune() Config {
	if d, err := time.ParseDuration(os.Getenv("METE_TORTURE_UPSTREAM")); err == nil {
		c.Interval, c.MinBackoff, c.MaxBackoff, c.includeOpen = d, d, 4*d, true
	}
	return c
}
