package ledger

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestOpenOnFullDisk checks the hint when the ledger is opened on a full file system, and that it
// opens after space is freed.
func TestOpenOnFullDisk(t *testing.T) {
	hosttest.Need(t, "root")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
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
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
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
