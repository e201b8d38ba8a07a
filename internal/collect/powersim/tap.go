package powersim

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
)

// A tap reads the CPU time of one load.
type tap struct {
	host *hostfs.FS
	load Load
	file *hostfs.File
	v2   bool
	// begun says that the machine has: a group that comes from then on has no
	// past before it.
	begun bool
	last  int64 // ns
	buf   [2048]byte
}

// open opens the file with a group's CPU time: cpuacct.usage of v1, cpu.stat of
// v2.
func (t *tap) open() error {
	f, err := t.host.Open(filepath.Join(t.load.Group, "cpuacct.usage"))
	if t.v2 = err != nil; t.v2 {
		if f, err = t.host.Open(filepath.Join(t.load.Group, "cpu.stat")); err != nil {
			return err
		}
	}
	t.file, t.last = f, 0
	if v, ok := t.read(); ok && !t.begun {
		t.last = v
	}
	t.begun = true
	return nil
}

// used returns the ns that the load used since it was asked last: none where it
// is not there.
func (t *tap) used() int64 {
	if t.load.PID == 0 && t.file == nil && t.open() != nil {
		return 0
	}
	v, ok := t.read()
	switch {
	case !ok && t.file != nil:
		_ = t.close() // the group is gone, and may be made anew
		return 0
	case !ok:
		return 0
	case !t.begun:
		t.begun, t.last = true, v
		return 0
	}
	used := v - t.last
	t.last = v
	return max(0, used)
}

// read returns the CPU time of the load's life.
func (t *tap) read() (int64, bool) {
	if t.load.PID != 0 {
		// The clock of another process, include/linux/posix-timers_types.h: its
		// id inverted, and CPUCLOCK_SCHED. It is exact and counts all threads.
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^t.load.PID<<3|2), &ts); err != nil {
			return 0, false
		}
		return ts.Nano(), true
	}
	n, err := t.file.Pread(t.buf[:])
	if err != nil {
		return 0, false
	}
	if t.v2 {
		s, err := procfmt.CPUStat(t.buf[:n])
		return s.Usage, err == nil && s.HasUsage
	}
	v, err := procfmt.Int(t.buf[:n])
	return v, err == nil
}

func (t *tap) close() error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	t.file = nil
	return err
}
