package exclusive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/otheruser"
)

// waitForOthers waits briefly for jobs of another user, longer for those of this one.
func TestWaitForOthers(t *testing.T) {
	hosttest.Need(t, "root")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ledger := fmt.Sprintf("d%015x", os.Getpid())
	whole, err := Acquire(h, ledger, Machine)
	if err != nil {
		t.Fatal(err)
	}
	pid, release := otheruser.Hold(t, ledger, otheruser.Listening, "/a/mete-run-1")
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	if err := whole.waitForOthers(t.Context(), time.Hour, 0, log); err != nil || !strings.Contains(logged.String(), fmt.Sprintf("not given way; their use may be counted twice\" jobs=\"[process %d of user %d]", pid, otheruser.OtherUID)) {
		t.Errorf("%v: %s", err, &logged)
	}
	own, err := Acquire(h, ledger, Scope{Path: "/b/mete-run-2"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	log = slog.New(slog.NewTextHandler(writer(func([]byte) { stop() }), nil)) // stops at the first message
	if err := whole.waitForOthers(ctx, time.Hour, 0, log); !errors.Is(err, context.Canceled) {
		t.Errorf("waitForOthers returned without waiting: %v", err)
	}
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	log = slog.New(slog.NewTextHandler(writer(func([]byte) { release() }), nil))
	if err := whole.waitForOthers(t.Context(), time.Hour, time.Hour, log); err != nil {
		t.Error(err)
	}
	if err := whole.Close(); err != nil {
		t.Error(err)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
