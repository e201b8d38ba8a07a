//go:build torture

package ledger

import (
	"os"
	"time"
)

// tune folds before it is time, where METE_TORTURE_FOLD is by how much: so
// hours and days are folded while they last, and what comes for them is late.
func (c Config) tune() Config {
	if ahead, err := time.ParseDuration(os.Getenv("METE_TORTURE_FOLD")); err == nil {
		c.Grace, c.Every = -ahead, 200*time.Millisecond
	}
	return c
}
