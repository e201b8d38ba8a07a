package launch

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// SelfUsage returns this process's own CPU time in ns and its peak resident memory in bytes.
func SelfUsage(h *hostfs.FS) (cpu, peak int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err == nil {
		cpu = u.Utime.Nano() + u.Stime.Nano()
	}
	// Not ru_maxrss, which starts at the parent's value.
	b, err := h.ReadFile("/proc/self/status")
	if err != nil {
		return cpu, 0
	}
	_, rest, _ := bytes.Cut(b, []byte("\nVmHWM:"))
	if f := bytes.Fields(rest); len(f) > 1 {
		if kib, err := strconv.ParseInt(string(f[0]), 10, 64); err == nil {
			peak = kib << 10
		}
	}
	return cpu, peak
}
