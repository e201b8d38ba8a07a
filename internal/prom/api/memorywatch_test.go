package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// The watch cancels the latest large query first, the next one only when the freed memory
// is known, and the small ones only if no large query runs.
func TestMemoryWatch(t *testing.T) {
	w := &memoryWatch{memory: 100, thisMinute: 1000, minute: time.Unix(1e9, 0)}
	at := time.Unix(1e9+1, 0)
	ctxs := make([]context.Context, 4)
	for i, large := range []bool{false, true, true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ctxs[i] = ctx
		w.running = append(w.running, &run{&admission{}, large, at.Add(-time.Second), cancel})
	}
	check := func(used int64, cycles uint64, want string) {
		t.Helper()
		w.check(used, cycles, at)
		var got strings.Builder
		for _, ctx := range ctxs {
			if errors.Is(context.Cause(ctx), errMemory) {
				got.WriteString("x")
			} else {
				got.WriteString("-")
			}
		}
		if got.String() != want {
			t.Errorf("%d bytes live after %d collections: %s, want %s", used, cycles, got.String(), want)
		}
	}
	check(1100, 1, "----")
	check(1101, 1, "--x-")
	check(1200, 2, "--x-")
	check(1200, 3, "-xx-")
	check(1050, 4, "-xx-")
	check(1200, 5, "xxxx")
	// Memory that stays in use for two minutes is not attributed to queries.
	at = at.Add(2 * time.Minute)
	w.check(2000, 9, at)
	at = at.Add(2 * time.Minute)
	ctx, cancel := context.WithCancelCause(t.Context())
	w.running = []*run{{&admission{}, true, at, cancel}}
	if w.check(2100, 20, at); ctx.Err() != nil {
		t.Error("a query was canceled for memory in use before it")
	}
}
