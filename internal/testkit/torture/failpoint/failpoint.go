// Package failpoint kills its process at a place in the code. The tests of
// internal/testkit/torture build programs with it in the place of
// internal/x/failpoint; nothing imports it here.
//
// The environment names the place: METE_CRASH=point@3 kills the process, as
// SIGKILL does, at the third visit.
package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// A place is a point to die at, and how many visits are left until then.
type place struct {
	point string
	left  atomic.Int64
}

// where is the place that the environment names, read once.
var where = func() *place {
	point, n, _ := strings.Cut(os.Getenv("METE_CRASH"), "@")
	w := &place{point: point}
	count, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		count = 1
	}
	w.left.Store(count)
	return w
}()

// At kills the process where the environment says so. It writes the point to
// the file that METE_CRASH_LOG names before.
func At(point string) {
	if point != where.point || where.left.Add(-1) != 0 {
		return
	}
	if f, err := os.OpenFile(os.Getenv("METE_CRASH_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(point + "\n")
		_ = f.Sync()
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
