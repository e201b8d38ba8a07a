package hosttest

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// SmallDisk mounts a tmpfs with options, such as "size=4m", until the test ends, and returns its directory. It needs root.
func SmallDisk(t testing.TB, options string) string {
	t.Helper()
	Need(t, "root")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH) // what a failed test has not closed does not keep the disk
		}
	})
	return dir
}

// FillDisk appends to a file until its disk is full.
func FillDisk(t testing.TB, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
