//go:build torture

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

// At kills the process where the environment says so, and notes the point in
// the file that METE_CRASH_LOG names.
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
