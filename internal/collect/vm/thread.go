package vm

import (
	"strconv"
	"strings"
)

// A Role is what a thread of a virtual machine does.
type Role uint8

const (
	// Emulator is all else: the main loop, workers, the monitor.
	Emulator Role = iota
	VCPU          // runs the guest
	VHost         // moves its packets in the kernel
	IOThread      // serves its disks

	RoleLimit // one more than the highest role
)

var roleNames = [RoleLimit]string{"emulator", "vcpu", "vhost", "io"}

// String returns the role's name.
func (r Role) String() string { return roleNames[r] }

// allCPUsThread is the thread that runs all CPUs of a guest in turn, which QEMU's emulated
// CPUs can do.
const allCPUsThread = "ALL CPUs/TCG"

// monitorThread is the I/O thread of QEMU's own monitor.
const monitorThread = "IO mon_iothread"

// roleOf says what the thread with the name does. The names are QEMU's where
// debug-threads is on ("CPU 3/KVM", "IO iothread1"), and the kernel's of vhost
// threads ("vhost-1234").
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

// vhostOwner returns whose thread vhost-PID is.
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

// vcpus counts the CPUs that threads of these names run: how many, and whether
// the names tell.
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

// isQEMU reports whether a program, or a process, of this name is QEMU running a
// machine. A process's name has 15 bytes at most. Wrapped programs of Nix have a
// dot in front.
func isQEMU(name string) bool {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "."), " (deleted)")
	return strings.HasPrefix(name, "qemu-system-") || name == "qemu-kvm" || name == "kvm"
}
