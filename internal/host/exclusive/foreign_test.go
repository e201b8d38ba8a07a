package exclusive_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/otheruser"
)

// Another user who holds a claim's name does not prevent the measurement, and the claim is
// still held and visible.
func TestForeignHolder(t *testing.T) {
	hosttest.Need(t, "root")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	for i, how := range []string{otheruser.Listening, otheruser.Bound, otheruser.Full} {
		t.Run(how, func(t *testing.T) {
			ledger := fmt.Sprintf("e%d%014x", i, os.Getpid())
			pid, _ := otheruser.Hold(t, ledger, how, "/")
			var log bytes.Buffer
			c, err := exclusive.AcquireMachine(t.Context(), h, ledger, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil || c == nil {
				t.Fatalf("%v, %v", c, err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			want := map[string]string{
				otheruser.Listening: fmt.Sprintf("holder=\"process %d of user %d\"", pid, otheruser.OtherUID),
				otheruser.Full:      fmt.Sprintf("holder=\"a process of user %d\"", otheruser.OtherUID),
			}[how]
			if (want == "") != (log.Len() == 0) || !strings.Contains(log.String(), want) {
				t.Errorf("log %q, want %q", &log, want)
			}
			otheruser.Hold(t, ledger, how, "/a/mete-run-1")
			// A second meter and a job see the claim.
			if _, err := exclusive.AcquireMachine(t.Context(), h, ledger, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
				t.Errorf("a second meter: %v", err)
			}
			job, err := exclusive.Acquire(h, ledger, exclusive.Scope{Path: "/a/mete-run-1"})
			if err != nil {
				t.Fatal(err)
			}
			ignored, err := job.Conflicts()
			by, _ := errors.AsType[*exclusive.ConflictError](err)
			if by == nil || len(by.Holders) != 1 || by.Holders[0].UID != 0 {
				t.Errorf("a job's conflict: %v", err)
			}
			if (len(ignored) == 2) != (how != otheruser.Bound) {
				t.Errorf("ignored %v", ignored)
			}
			if err := job.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A note of another user does not count.
func TestMarked(t *testing.T) {
	dir := t.TempDir()
	if _, ok := exclusive.Marked(dir, "l"); ok {
		t.Error("Marked without a note")
	}
	if err := exclusive.Mark(dir, "l"); err != nil {
		t.Fatal(err)
	}
	file, ok := exclusive.Marked(dir, "l")
	if !ok || filepath.Dir(file) != dir {
		t.Errorf("%s, %v", file, ok)
	}
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "run", "agent.sock")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exclusive.MarkAll("k", state, socket); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{state, filepath.Dir(socket)} {
		if _, ok := exclusive.Marked(at, "k"); !ok {
			t.Errorf("no note in %s", at)
		}
		if _, ok := exclusive.Marked(at, "l"); ok {
			t.Errorf("a note of another ledger in %s", at)
		}
	}
	hosttest.Need(t, "root")
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("others cannot look for the note: %v, %v", info.Mode(), err)
	}
	if err := os.Chown(file, otheruser.OtherUID, otheruser.OtherUID); err != nil {
		t.Fatal(err)
	}
	if _, ok := exclusive.Marked(dir, "l"); ok {
		t.Error("Marked with the note of another user")
	}
}
