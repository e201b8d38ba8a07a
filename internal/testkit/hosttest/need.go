package hosttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/testkit/pgbin"
)

// needs maps each requirement of tests to a check that returns nil if this machine meets
// it, else the reason.
var needs = map[string]func() error{
	"root":            root,
	"bpf":             bpf,
	"cgroup1":         func() error { return groups(func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") }) },
	"cgroup2":         func() error { return groups(func(y hostfs.Hierarchy) bool { return y.V2 }) },
	"memcg1":          func() error { return groups(func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("memory") }) },
	"memcg2":          func() error { return groups(func(y hostfs.Hierarchy) bool { return y.V2 && y.Has("memory") }) },
	"unified":         unified,
	"psi":             func() error { return exists("/proc/pressure/cpu") },
	"rapl":            func() error { return exists("/sys/class/powercap/intel-rapl:0/energy_uj") },
	"loop":            func() error { return errors.Join(root(), exists("/dev/loop-control")) },
	"netns":           func() error { return errors.Join(root(), exists("/proc/self/ns/net")) },
	"chromium":        func() error { _, err := exec.LookPath("chromium"); return err },
	"dpkg":            func() error { _, err := exec.LookPath("dpkg-deb"); return err },
	"dbus":            func() error { _, err := exec.LookPath("dbus-daemon"); return err },
	"systemd":         func() error { return exists("/run/systemd/system") },
	"procfs":          func() error { return exists("/proc/self/stat") },
	"schedstat":       func() error { return exists("/proc/self/schedstat") },
	"promtool":        func() error { _, err := exec.LookPath("promtool"); return err },
	"gcc":             func() error { _, err := exec.LookPath("gcc"); return err },
	"vsock":           func() error { return exists("/sys/module/vsock_loopback") },
	"postgres":        func() error { _, err := pgbin.Programs(); return err },
	"prometheus":      func() error { _, err := exec.LookPath("prometheus"); return err },
	"mosquitto":       func() error { return errors.Join(exists("/usr/sbin/mosquitto"), exists("/usr/bin/mosquitto_pub")) },
	"qemu":            func() error { _, err := exec.LookPath("qemu-system-x86_64"); return err },
	"kvm":             kvm,
	"pty":             func() error { return errors.Join(exists("/dev/ptmx"), exists("/dev/pts")) },
	"curl":            func() error { _, err := exec.LookPath("curl"); return err },
	"setpriv":         func() error { _, err := exec.LookPath("setpriv"); return err },
	"systemd-analyze": func() error { _, err := exec.LookPath("systemd-analyze"); return err },
	"unshare":         func() error { _, err := exec.LookPath("unshare"); return err },
	"alertmanager":    func() error { _, err := exec.LookPath("prometheus-alertmanager"); return err },
	"dockerd":         func() error { return errors.Join(exists("/usr/sbin/dockerd"), exists("/usr/bin/docker")) },
	"podman":          func() error { _, err := exec.LookPath("podman"); return err },
	"libvirt": func() error {
		return errors.Join(exists("/usr/sbin/libvirtd"), exists("/usr/bin/virsh"), exists(qemuDriver))
	},
	"slurm": func() error {
		return errors.Join(exists("/usr/sbin/slurmctld"), exists("/usr/sbin/slurmd"), exists("/usr/bin/squeue"), exists("/usr/sbin/munged"))
	},
}

// qemuDriver is the driver of libvirt's daemon for QEMU.
const qemuDriver = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so"

// Need skips the test unless this machine meets each requirement: root, bpf (programs can
// be loaded and the kernel has BTF), cgroup1 and cgroup2 (groups of that version can be
// created; cgroup1 with cpuacct), memcg1 and memcg2 (the same with the memory controller),
// unified (cgroup v2 alone, whose top groups have the controllers cpu, io, memory and pids), psi, rapl, loop, netns, chromium, dpkg, dbus, systemd, procfs,
// schedstat, promtool, gcc, vsock (AF_VSOCK to this machine itself), postgres, prometheus, alertmanager, mosquitto (the
// broker and its clients), qemu (for x86-64), kvm (this user can open it), pty (pseudoterminals), and the programs curl, dockerd (with its client), podman, libvirt (its daemon, its driver for QEMU and its client), slurm (its daemons, its client and munge), setpriv, systemd-analyze, unshare. If METE_MUST, a
// comma-separated list, contains the requirement, Need fails the test instead: so the gate
// knows that nothing was skipped.
func Need(t testing.TB, things ...string) {
	t.Helper()
	must := strings.Split(os.Getenv("METE_MUST"), ",")
	for _, thing := range things {
		have, ok := needs[thing]
		if !ok {
			t.Fatalf("hosttest: unknown requirement %q", thing)
		}
		err := have()
		switch {
		case err == nil:
		case slices.Contains(must, thing):
			t.Fatalf("METE_MUST has %s: %v", thing, err)
		default:
			t.Skipf("needs %s: %v", thing, err)
		}
	}
}

func root() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("user %d is not root", uid)
	}
	return nil
}

// kvm checks whether this user can create virtual machines.
func kvm() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func exists(p string) error {
	_, err := os.Stat(p)
	return err
}

// bpf loads a trivial program of a kind that needs the permissions to load programs and to
// trace.
func bpf() error {
	if err := exists("/sys/kernel/btf/vmlinux"); err != nil {
		return err
	}
	code := [...]uint64{0xb7, 0x95} // r0 = 0; exit
	license := [...]byte{'G', 'P', 'L', 0}
	// The first fields of union bpf_attr for BPF_PROG_LOAD, include/uapi/linux/bpf.h.
	attr := struct {
		kind, count   uint32
		code, license uintptr
	}{unix.BPF_PROG_TYPE_RAW_TRACEPOINT, uint32(len(code)), uintptr(unsafe.Pointer(&code)), uintptr(unsafe.Pointer(&license))}
	fd, errno := uintptr(0), unix.EAGAIN
	for errno == unix.EAGAIN { // a signal, as the Go scheduler sends them, interrupted the kernel's verifier
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(&code)
	runtime.KeepAlive(&license)
	if errno != 0 {
		return fmt.Errorf("bpf(BPF_PROG_LOAD): %w", errno)
	}
	return unix.Close(int(fd))
}

// unified checks whether this machine has cgroup v2 alone, and enables its controllers.
func unified() error {
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }() // nothing was written
	ys, err := h.Hierarchies()
	if err != nil {
		return err
	}
	if len(ys) != 1 || !ys[0].V2 {
		return errors.New("hierarchies of version 1 are mounted")
	}
	b, err := h.ReadFile(ys[0].Mount + "/cgroup.subtree_control")
	if err != nil {
		return err
	}
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(b)), c) {
			return fmt.Errorf("top groups lack the controller %s", c)
		}
	}
	return groups(func(y hostfs.Hierarchy) bool { return true })
}

// groups creates and removes a group in the first hierarchy that fits.
func groups(fits func(hostfs.Hierarchy) bool) error {
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	ys, err := h.Hierarchies()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(ys, fits)
	if i < 0 {
		return errors.New("no such hierarchy of control groups is mounted")
	}
	dir, err := os.MkdirTemp(filepath.Clean(ys[i].Mount), "mete-test-need-*")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}
