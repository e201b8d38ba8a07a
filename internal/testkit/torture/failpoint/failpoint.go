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

// A crashPoint is the point to die at and the number of visits left until then.
type crashPoint struct {
	point string
	left  atomic.Int64
}

// target is the crash point of METE_CRASH.
var target = func() *crashPoint {
	point, n, _ := strings.Cut(os.Getenv("METE_CRASH"), "@")
	p := &crashPoint{point: point}
	count, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		count = 1
	}
	p.left.Store(count)
	return p
}()

// At kills the process at the point that METE_CRASH names, and first appends the point to
// the file METE_CRASH_LOG.
func At(point string) {
	if point != target.point || target.left.Add(-1) != 0 {
		return
	}
	if f, err := os.OpenFile(os.Getenv("METE_CRASH_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(point + "\n")
		_ = f.Sync()
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
