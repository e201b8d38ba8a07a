package vm_test

import (
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/vm"
)

func TestSoleVM(t *testing.T) {
	qemu := vm.P{PID: 10, Parent: 1, Name: "qemu-system-x86", QEMU: true}
	var crowd []vm.P
	for pid := range int32(9) {
		crowd = append(crowd, vm.P{PID: 100 + pid, Parent: 1, Name: "nginx"})
	}
	for _, c := range []struct {
		name string
		them []vm.P
		pid  int32
		why  string
	}{
		{"alone", []vm.P{qemu}, 10, ""},
		{"with its helpers", []vm.P{qemu, {PID: 11, Parent: 1, Name: "virtiofsd"}, {PID: 12, Parent: 11, Name: "virtiofsd"},
			{PID: 13, Parent: 1, Name: "swtpm"}, {PID: 14, Parent: 1, Name: "passt.avx2"}, {PID: 15, Parent: 1, Name: "vhost-user-gpu"}}, 10, ""},
		{"with vhost threads of the kernel", []vm.P{qemu, {PID: 11, Parent: 2, Name: "vhost-10", Kernel: true}}, 10, ""},
		{"in a waiting shell", []vm.P{{PID: 8, Parent: 1, Name: "bash"}, {PID: 9, Parent: 8, Name: "run.sh"},
			{PID: 10, Parent: 9, Name: "qemu-system-x86", QEMU: true}}, 10, ""},
		{"with its children", []vm.P{qemu, {PID: 11, Parent: 10, Name: "sh"}, {PID: 12, Parent: 11, Name: "ip"}}, 10, ""},
		{"while it forks", []vm.P{qemu, {PID: 11, Parent: 10, Name: "qemu-system-x86", QEMU: true}}, 10, ""},
		{"two", []vm.P{qemu, {PID: 20, Parent: 1, Name: "kvm", QEMU: true}}, 0,
			"2 virtual machines are in one group: qemu-system-x86 (PID 10), kvm (PID 20); give each its own"},
		{"with other processes", []vm.P{qemu, {PID: 11, Parent: 1, Name: "nginx"}, {PID: 12, Parent: 11, Name: "nginx"}}, 0,
			"it shares its group with nginx (PID 11), nginx (PID 12); give it its own"},
		{"beside a child of its shell", []vm.P{{PID: 9, Parent: 1, Name: "bash"}, {PID: 10, Parent: 9, Name: "kvm", QEMU: true}, {PID: 11, Parent: 9, Name: "make"}}, 0,
			"it shares its group with make (PID 11); give it its own"},
		{"with many processes", append([]vm.P{qemu}, crowd...), 0,
			"it shares its group with nginx (PID 100), nginx (PID 101), nginx (PID 102), nginx (PID 103) and 5 more; give it its own"},
		{"a name with terminal control codes", []vm.P{qemu, {PID: 11, Parent: 1, Name: "a\x1b[2J"}}, 0,
			`it shares its group with a\x1b[2J (PID 11); give it its own`},
		{"a cycle of parents", []vm.P{qemu, {PID: 12, Parent: 13, Name: "b"}, {PID: 13, Parent: 12, Name: "c"}}, 0,
			"it shares its group with b (PID 12), c (PID 13); give it its own"},
		{"empty", nil, 0, "no virtual machine is in it"},
	} {
		if pid, why := vm.Alone(c.them...); pid != c.pid || why != c.why {
			t.Errorf("%s: %d %q, want %d %q", c.name, pid, why, c.pid, c.why)
		}
	}
}

func TestRoles(t *testing.T) {
	for name, want := range map[string]vm.Role{
		"CPU 0/KVM": vm.VCPU, "CPU 127/KVM": vm.VCPU, "CPU 1/TCG": vm.VCPU, "ALL CPUs/TCG": vm.VCPU,
		"vhost-4711": vm.VHost, "IO iothread1": vm.IOThread, "IO iot0": vm.IOThread,
		"IO mon_iothread": vm.Emulator, "qemu-system-x86": vm.Emulator, "worker": vm.Emulator, "call_rcu": vm.Emulator,
		"CPU x/KVM": vm.Emulator, "CPU 1": vm.Emulator, "vhost-user-gpu": vm.Emulator, "vhost-": vm.Emulator, "": vm.Emulator,
	} {
		if got := vm.RoleOf(name); got != want {
			t.Errorf("%q is %v, want %v", name, got, want)
		}
	}
	for _, c := range []struct {
		threads string
		n       int
		named   bool
	}{
		{"qemu-system-x86|worker|CPU 0/KVM|CPU 1/KVM|CPU 2/KVM", 3, true},
		{"qemu-system-x86|ALL CPUs/TCG", 4, true}, // one thread for all CPUs at start
		{"kvm|kvm|kvm", 4, false},
	} {
		if n, named := vm.VCPUs(strings.Split(c.threads, "|"), 4); n != c.n || named != c.named {
			t.Errorf("%s: %d %v, want %d %v", c.threads, n, named, c.n, c.named)
		}
	}
}

func TestIsQEMU(t *testing.T) {
	for name, want := range map[string]bool{
		"qemu-system-x86_64": true, "qemu-system-x86": true, "qemu-system-aarch64 (deleted)": true, "qemu-kvm": true, "kvm": true,
		".qemu-system-x86_64-wrapped": true, "kvm (deleted)": true,
		"qemu-img": false, "qemu-nbd": false, "qemu-x86_64": false, "kvmtool": false, "bash": false, "": false,
	} {
		if got := vm.IsQEMU(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// Rates are relative to the time between; a thread that ended does not make them negative.
func TestSince(t *testing.T) {
	a := vm.Times{At: 1e9, CPU: 5e9, Named: true, Wait: 1e9, HasWait: true}
	a.Role[vm.VCPU], a.Role[vm.IOThread], a.Role[vm.Emulator] = 3e9, 1e9, 1e9
	b := a
	b.At, b.CPU, b.Wait = 3e9, 8e9, 15e8
	b.Role[vm.VCPU], b.Role[vm.IOThread], b.Role[vm.Emulator] = 5e9, 0, 3e9
	r, ok := b.Since(a)
	want := vm.Rates{CPU: 1.5, Named: true, Wait: 0.25, HasWait: true}
	want.Role[vm.VCPU], want.Role[vm.Emulator] = 1, 1
	if !ok || r != want {
		t.Errorf("%+v %v, want %+v", r, ok, want)
	}
	if _, ok := a.Since(a); ok {
		t.Error("rates without time")
	}
	b.HasWait = false
	if r, _ := b.Since(a); r.HasWait {
		t.Error("a wait that only one reading has")
	}
}
