//go:build torture

package sender

import (
	"os"
	"time"
)

// tune tries again sooner, where METE_TORTURE_BACKOFF is the shortest delay: so
// that much happens between two deaths.
func (c Config) tune() Config {
	if d, err := time.ParseDuration(os.Getenv("METE_TORTURE_BACKOFF")); err == nil {
		c.MinBackoff, c.MaxBackoff, c.DrainRate = d, 10*d, 20
	}
	return c
}
