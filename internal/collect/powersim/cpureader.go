package powersim

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
)

// A cpuReader reads the CPU time of one load.
type cpuReader struct {
	host *hostfs.FS
	load Load
	file *hostfs.File
	v2   bool
	// begun is set once the machine has begun: the use of a group that appears later counts
	// from 0.
	begun bool
	last  int64 // ns
	buf   [2048]byte
}

// open opens the file with a group's CPU time: cpuacct.usage of v1, cpu.stat of
// v2.
func (r *cpuReader) open() error {
	f, err := r.host.Open(filepath.Join(r.load.Group, "cpuacct.usage"))
	if r.v2 = err != nil; r.v2 {
		if f, err = r.host.Open(filepath.Join(r.load.Group, "cpu.stat")); err != nil {
			return err
		}
	}
	r.file, r.last = f, 0
	if v, ok := r.read(); ok && !r.begun {
		r.last = v
	}
	r.begun = true
	return nil
}

// used returns the ns that the load used since the last call, 0 if the load does not exist.
func (r *cpuReader) used() int64 {
	if r.load.PID == 0 && r.file == nil && r.open() != nil {
		return 0
	}
	v, ok := r.read()
	switch {
	case !ok && r.file != nil:
		_ = r.close() // the group was removed, and may be created again
		return 0
	case !ok:
		return 0
	case !r.begun:
		r.begun, r.last = true, v
		return 0
	}
	used := v - r.last
	r.last = v
	return max(0, used)
}

// read returns the cumulative CPU time of the load.
func (r *cpuReader) read() (int64, bool) {
	if r.load.PID != 0 {
		// CPU clock of another process, include/linux/posix-timers_types.h: the inverted id
		// with CPUCLOCK_SCHED. It is exact and includes all threads.
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^r.load.PID<<3|2), &ts); err != nil {
			return 0, false
		}
		return ts.Nano(), true
	}
	n, err := r.file.Pread(r.buf[:])
	if err != nil {
		return 0, false
	}
	if r.v2 {
		s, err := procfmt.CPUStat(r.buf[:n])
		return s.Usage, err == nil && s.HasUsage
	}
	v, err := procfmt.Int(r.buf[:n])
	return v, err == nil
}

func (r *cpuReader) close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
