package hosttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// LockExclusive waits until no other test of this machine, of whatever package, does what is
// called so as the same user, be it with [LockExclusive] or with [LockShared], and keeps them away
// until the test ends: packages are tested beside each other, and share one kernel. A
// test asks once for one thing: it would wait for itself.
func LockExclusive(t testing.TB, what string) {
	t.Helper()
	hold(t, what, unix.LOCK_EX)
}

// LockShared keeps away those who want to be alone with what is called so.
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
	t.Cleanup(func() { _ = f.Close() }) // which lets go of it
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err != nil {
		t.Fatal(err)
	}
}
