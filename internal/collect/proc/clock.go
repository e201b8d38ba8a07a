package proc

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// CPUTime returns the CPU time that a process used, with all its threads, ns: its
// CPU clock as clock_getcpuclockid(3) names it. Anybody may ask. An error says that
// there is no such process. It may be another than the caller thinks: only who
// holds a descriptor of it knows.
func CPUTime(pid int32) (int64, error) {
	// CPUCLOCK_SCHED and MAKE_PROCESS_CPUCLOCK, linux/posix-timers_types.h.
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(^pid<<3|sched, &ts); err != nil {
		return 0, err
	}
	return ts.Nano(), nil
}

// CanReadCPUTime reports whether the PIDs of h are those of this process, so that the
// clocks are of the same processes as the files.
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
