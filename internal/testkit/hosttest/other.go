package hosttest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// OtherUID is a user without privileges.
const OtherUID = 65534

// AsOther calls f as [OtherUID], on a thread of its own: sockets that f itself opens, connects or
// accepts are of that user. Goroutines that f starts are not. It needs root.
func AsOther(t testing.TB, f func() error) error {
	t.Helper()
	Need(t, "root")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // permanently, so that the thread ends with the goroutine
		const keep = ^uintptr(0)
		// A raw call changes this thread only.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, OtherUID, keep); errno != 0 {
			done <- os.NewSyscallError("setresuid", errno)
			return
		}
		err := fmt.Errorf("the function ended its goroutine")
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}
