// Package sleep waits with a context.
package sleep

import (
	"context"
	"time"
)

// For waits for d. It returns the error of ctx if ctx ends first.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
