package hosttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// LockExclusive waits until no other test on this machine, of any package, holds the named
// lock for the same user by [LockExclusive] or [LockShared], and holds it until the test
// ends: packages are tested in parallel and share one kernel. Call it once per name and
// test, because a second call would deadlock.
func LockExclusive(t testing.TB, what string) {
	t.Helper()
	hold(t, what, unix.LOCK_EX)
}

// LockShared holds the named lock together with other callers of LockShared.
func LockShared(t testing.TB, what string) {
	t.Helper()
	hold(t, what, unix.LOCK_SH)
}

func hold(t testing.TB, what string, how int) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("mete-test-%d-%s.lock", os.Getuid(), what)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // this releases the lock
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err != nil {
		t.Fatal(err)
	}
}
