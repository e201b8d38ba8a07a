package vm_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A fakeMachine is a captured machine to which processes are added.
type fakeMachine struct {
	t *testing.T
	h *hostfs.FS
}

func (m fakeMachine) write(p, text string) {
	m.t.Helper()
	file := m.h.Path(p)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// process adds a process or kernel thread, with threads "name run-ns wait-ns".
func (m fakeMachine) process(pid, parent int, exe, comm, cmdline, group string, threads ...string) {
	m.t.Helper()
	d := fmt.Sprintf("/proc/%d", pid)
	flags := 0x400000
	if exe == "" {
		flags = 0x200000 // PF_KTHREAD
	}
	// Fields of proc_pid_stat(5): 2 s in user mode, 1 s in the kernel, started 50 s after boot.
	m.write(d+"/stat", fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 0 0 0 0 200 100 0 0 20 0 %d 0 5000 0 0 0\n", pid, comm, parent, flags, max(1, len(threads))))
	m.write(d+"/cmdline", strings.ReplaceAll(cmdline, " ", "\x00")+"\x00")
	m.write(d+"/cgroup", "0::"+group+"\n")
	m.write(d+"/schedstat", "250000000 0 1\n")
	if exe != "" {
		m.exe(pid, exe)
	}
	for i, th := range threads {
		name, times, _ := strings.Cut(th, "|")
		m.write(fmt.Sprintf("%s/task/%d/comm", d, pid+1000+i), name+"\n")
		m.write(fmt.Sprintf("%s/task/%d/schedstat", d, pid+1000+i), times+" 1\n")
	}
}

// exe changes the program of a process.
func (m fakeMachine) exe(pid int, exe string) {
	m.t.Helper()
	link := m.h.Path(fmt.Sprintf("/proc/%d/exe", pid))
	if err := os.RemoveAll(link); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(exe, link); err != nil {
		m.t.Fatal(err)
	}
}

const scope = `/machine.slice/machine-qemu\x2d7\x2dweb.scope`

// A domain of libvirt on cgroup v2, with virtiofsd, and with a vhost thread of kernels
// before 6.4, outside the process.
func TestLibvirt(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	m := fakeMachine{t, h}
	for _, g := range []string{"/machine.slice", scope, scope + "/libvirt", scope + "/libvirt/emulator", scope + "/libvirt/vcpu0"} {
		m.write("/sys/fs/cgroup"+g+"/cpu.stat", "usage_usec 1000\nuser_usec 500\nsystem_usec 500\n")
		m.write("/sys/fs/cgroup"+g+"/cgroup.procs", "")
	}
	m.write("/sys/fs/cgroup"+scope+"/libvirt/cgroup.procs", "90100\n90101\n90102\n")
	m.process(90100, 1, "/usr/bin/qemu-system-x86_64 (deleted)", "qemu-system-x86", "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -S -smp 1,maxcpus=4 -uuid "+uuid+" -device vhost-vsock-pci,guest-cid=9,vhostfd=33", scope+"/libvirt/emulator",
		"qemu-system-x86|100000000 5", "CPU 0/KVM|1000000000 40", "CPU 1/KVM|500000000 2", "IO iothread1|300000000 1", "IO mon_iothread|7 7", "worker|9 9")
	m.process(90101, 2, "", "vhost-90100", "", scope+"/libvirt/emulator")
	m.process(90102, 1, "/usr/libexec/virtiofsd", "virtiofsd", "virtiofsd", scope+"/libvirt/emulator")
	groups, vms := captured(t, h)
	var s usage.Snapshot
	read(t, groups, vms, &s)
	i := slices.IndexFunc(s.Groups, func(g *usage.Group) bool { return g.Workload.Path == scope })
	if i < 0 || s.Groups[i].Guest == nil {
		t.Fatalf("no guest; %+v", vms.All())
	}
	if got, want := *s.Groups[i].Guest, (usage.Guest{UUID: uuid, Name: "web", CID: 9, VCPUs: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	x, err := vms.Times(vms.All()[0])
	if err != nil {
		t.Fatal(err)
	}
	// The process's 3 s, and a quarter of a second of the kernel thread.
	want := vm.Times{At: x.At, CPU: 325e7, Named: true, HasWait: true, Wait: 42}
	want.Role = [vm.RoleLimit]int64{vm.VCPU: 15e8, vm.IOThread: 3e8, vm.VHost: 25e7, vm.Emulator: 12e8}
	if x != want {
		t.Errorf("%+v, want %+v", x, want)
	}
}

// A process that becomes QEMU long after its start is found in time, and a process that
// reuses QEMU's PID is not.
func TestLateQEMU(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	m := fakeMachine{t, h}
	m.process(90200, 1, "/usr/bin/dash", "run.sh", "qemu-system-x86_64 -name late", "/system.slice/ssh.service", "run.sh|0 0")
	groups, vms := captured(t, h)
	var s usage.Snapshot
	for range 2 * vm.Settled {
		read(t, groups, vms, &s)
	}
	if all := vms.All(); len(all) != 0 {
		t.Fatalf("%+v", all[0])
	}
	m.exe(90200, "/usr/bin/qemu-system-x86_64")
	looks := 0
	for ; len(vms.All()) == 0 && looks <= vm.OneIn; looks++ {
		read(t, groups, vms, &s)
	}
	if all := vms.All(); len(all) != 1 || all[0].Name != "late" {
		t.Fatalf("after %d scans: %+v", looks, all)
	}
	m.exe(90200, "/usr/bin/vim")
	read(t, groups, vms, &s)
	if all := vms.All(); len(all) != 0 {
		t.Errorf("another program: %+v", all[0])
	}
}

// Captured machines are read without errors and have no QEMU.
func TestCaptured(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		h := hosttest.Open(t, name)
		groups, vms := captured(t, h)
		var s usage.Snapshot
		read(t, groups, vms, &s)
		if all := vms.All(); len(all) != 0 {
			t.Errorf("%s: %+v", name, all[0])
		}
	}
}

func captured(t *testing.T, h *hostfs.FS) (*cgroup.Table, *vm.Table) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	groups, err := cgroup.OpenFiles(h, cgroup.Config{Node: "node", Boot: "boot", Every: 10, Files: 100}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, groups)
	vms, err := vm.Open(h, vm.Config{Every: 1}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return groups, vms
}

func read(t *testing.T, groups *cgroup.Table, vms *vm.Table, s *usage.Snapshot) {
	t.Helper()
	if err := groups.Read(s); err != nil {
		t.Fatal(err)
	}
	if err := vms.Read(s, groups.Owner); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	if _, err := vm.Open(h, vm.Config{}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a table that never scans")
	}
}
