package proc

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// CPUTime returns the CPU time in ns of a process with all its threads: its CPU clock, see
// clock_getcpuclockid(3). It needs no privilege. The error means that the process does not
// exist. The PID may have been reused; only a descriptor of the process excludes that.
func CPUTime(pid int32) (int64, error) {
	// CPUCLOCK_SCHED and MAKE_PROCESS_CPUCLOCK, linux/posix-timers_types.h.
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(^pid<<3|sched, &ts); err != nil {
		return 0, err
	}
	return ts.Nano(), nil
}

// CanReadCPUTime reports whether PIDs of h are those of this process's namespace, so that
// clocks and files belong to the same processes.
func CanReadCPUTime(h *hostfs.FS) bool {
	if !h.Live() {
		return false
	}
	self, err := h.Readlink("/proc/self")
	if err != nil || self != strconv.Itoa(os.Getpid()) {
		return false
	}
	_, err = CPUTime(int32(os.Getpid()))
	return err == nil
}
