// Package sleep waits.
package sleep

import (
	"context"
	"time"
)

// For waits for d, and returns ctx's error where that ends first.
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
