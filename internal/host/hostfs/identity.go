package hostfs

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// BootID returns the random id that the kernel made at boot.
func (h *FS) BootID() (string, error) { return h.readWord("/proc/sys/kernel/random/boot_id") }

// MachineID returns the id of the installation (machine-id(5)).
func (h *FS) MachineID() (string, error) { return h.readWord("/etc/machine-id") }

// Hostname returns the machine's name.
func (h *FS) Hostname() (string, error) { return h.readWord("/proc/sys/kernel/hostname") }

// Release returns the kernel's release, such as "6.12.9-amd64".
func (h *FS) Release() (string, error) { return h.readWord("/proc/sys/kernel/osrelease") }

func (h *FS) readWord(p string) (string, error) {
	b, err := h.ReadFile(p)
	if err != nil {
		return "", err
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return "", fmt.Errorf("%s: empty: %w", p, fault.ErrInvalid)
	}
	return string(b), nil
}

// Clocks holds the readings of a machine's clocks at one instant, in ns.
type Clocks struct {
	Boottime  int64 // since boot, suspend included
	Monotonic int64 // since boot, without suspend
	Realtime  int64 // since 1970
}

// Clocks reads the machine's clocks; those of a captured machine are as captured.
func (h *FS) Clocks() (Clocks, error) {
	if h.captured != nil {
		return h.capturedClocks()
	}
	var c Clocks
	for _, k := range [...]struct {
		id   int32
		into *int64
	}{{unix.CLOCK_BOOTTIME, &c.Boottime}, {unix.CLOCK_MONOTONIC, &c.Monotonic}} {
		var ts unix.Timespec
		if err := unix.ClockGettime(k.id, &ts); err != nil {
			return Clocks{}, wrap("clock", err)
		}
		*k.into = ts.Nano()
	}
	// The same wall clock as the rest of the program.
	c.Realtime = time.Now().UnixNano()
	return c, nil
}

// Boottime reads CLOCK_BOOTTIME alone, in ns.
func (h *FS) Boottime() (int64, error) {
	if h.captured != nil {
		c, err := h.capturedClocks()
		return c.Boottime, err
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, wrap("clock", err)
	}
	return ts.Nano(), nil
}

func (h *FS) capturedClocks() (Clocks, error) {
	b, err := h.ReadFile(clocksFile)
	if err != nil {
		return Clocks{}, err
	}
	var c Clocks
	for key, into := range map[string]*int64{"boottime": &c.Boottime, "monotonic": &c.Monotonic, "realtime": &c.Realtime} {
		v, ok, err := procfmt.KeyValue(b, key)
		if err != nil {
			return Clocks{}, fmt.Errorf("%s: %w", clocksFile, err)
		}
		if !ok {
			return Clocks{}, fmt.Errorf("%s: no %s: %w", clocksFile, key, fault.ErrInvalid)
		}
		*into = v
	}
	return c, nil
}
