package vm

import (
	"strconv"
	"strings"
)

// A Role is the role of a thread of a virtual machine.
type Role uint8

const (
	// Emulator is everything else: the main loop, workers, the monitor.
	Emulator Role = iota
	VCPU          // runs the guest
	VHost         // moves its packets in the kernel
	IOThread      // serves its disks

	RoleLimit // one more than the highest role
)

var roleNames = [RoleLimit]string{"emulator", "vcpu", "vhost", "io"}

// String returns the role's name.
func (r Role) String() string { return roleNames[r] }

// allCPUsThread is the thread that runs all emulated CPUs of a guest in turn.
const allCPUsThread = "ALL CPUs/TCG"

// monitorThread is the I/O thread of QEMU's own monitor.
const monitorThread = "IO mon_iothread"

// roleOf returns the role of a thread by its name. The names are QEMU's with
// debug-threads=on ("CPU 3/KVM", "IO iothread1"), and the kernel's for vhost threads
// ("vhost-1234").
func roleOf(name string) Role {
	if n, ok := strings.CutPrefix(name, "CPU "); ok {
		if n, _, ok := strings.Cut(n, "/"); ok && isNumber(n) {
			return VCPU
		}
	}
	switch _, vhost := vhostOwner(name); {
	case name == allCPUsThread:
		return VCPU
	case vhost:
		return VHost
	case strings.HasPrefix(name, "IO ") && name != monitorThread:
		return IOThread
	}
	return Emulator
}

// vhostOwner returns the PID of the process that the thread vhost-PID serves.
func vhostOwner(name string) (pid int32, ok bool) {
	n, ok := strings.CutPrefix(name, "vhost-")
	if !ok || !isNumber(n) {
		return 0, false
	}
	v, err := strconv.ParseInt(n, 10, 32)
	return int32(v), err == nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

// vcpus returns how many CPUs the threads with these names run, and whether the names show
// it.
func vcpus(names []string, started int) (n int, named bool) {
	for _, name := range names {
		if name == allCPUsThread {
			return started, true
		}
		if roleOf(name) == VCPU {
			n++
		}
	}
	if n == 0 {
		return started, false
	}
	return n, true
}

// isQEMU reports whether a program or process of this name is QEMU running a machine. A
// process name has 15 bytes at most. Wrapped programs of Nix begin with a dot.
func isQEMU(name string) bool {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "."), " (deleted)")
	return strings.HasPrefix(name, "qemu-system-") || name == "qemu-kvm" || name == "kvm"
}
