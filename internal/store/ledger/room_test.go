package ledger

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestOpenOnFullDisk checks the hint when the ledger is opened on a full file system, and that it
// opens after space is freed.
func TestOpenOnFullDisk(t *testing.T) {
	dir := hosttest.SmallDisk(t, "size=4m")
	open := func() error {
		l, err := Open(t.Context(), filepath.Join(dir, "ledger.db"), Default(), slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		return l.Close()
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	hosttest.FillDisk(t, filler)
	if err := open(); !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) != "free space on the file system of the ledger" {
		t.Errorf("opened on a full disk: %v, hint %q", err, fault.Hint(err))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Errorf("opened with free space: %v", err)
	}
}
