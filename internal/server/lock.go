package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"mete.dev/mete/internal/model/fault"
)

// lock locks the state directory until the returned file is closed or the process ends. If
// another server holds the lock, the error wraps fault.ErrConflict. The file keeps the id
// of its last holder.
func lock(state string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.WithHint(err, "make the directory writable for this user, or choose another one with --state")
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fault.WithHint(fmt.Errorf("%s: another server is running with this state%s: %w", state, holder(f), fault.ErrConflict),
			"stop that server (mete up runs one too), or choose another directory with --state"), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("%s: lock: %w", f.Name(), err), f.Close())
	}
	// The process id is informative; a full disk must not stop the server.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	}
	return f, nil
}

// holder returns " (process N)" for the process in a lock file, or "".
func holder(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0) // io.EOF is normal
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}
