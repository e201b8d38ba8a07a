package vm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// busy is the boot sector of a disk: it writes to a port forever, with interrupts off.
var busy = func() []byte {
	b := make([]byte, 512)
	copy(b, []byte{
		0xfa,       // cli
		0xb0, 0x41, // mov al, 'A'
		0xe6, 0x80, // out 0x80, al
		0xeb, 0xfc, // jmp to the out
	})
	b[510], b[511] = 0x55, 0xaa
	return b
}()

// A guest is a QEMU process with a busy virtual machine.
type guest struct {
	cmd *exec.Cmd
	err bytes.Buffer
}

// accelerators are QEMU's options for each accelerator: KVM needs a reduced CPU model that
// this machine's host supports.
var accelerators = map[string][]string{
	"kvm": {"-accel", "kvm", "-cpu", "host,-arch-capabilities"},
	"tcg": {"-accel", "tcg,thread=multi"},
}

// boot starts a virtual machine in a group.
func boot(t *testing.T, dir, accel string, args ...string) *guest {
	t.Helper()
	hosttest.Need(t, "qemu")
	if accel == "kvm" {
		hosttest.Need(t, "kvm")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, busy, 0o644); err != nil {
		t.Fatal(err)
	}
	g := &guest{cmd: exec.Command("qemu-system-x86_64", append(append([]string{"-nodefaults", "-no-user-config", "-display", "none", "-m", "16",
		"-drive", "file=" + disk + ",format=raw,if=floppy,readonly=on"}, accelerators[accel]...), args...)...)}
	g.cmd.Stderr = &g.err
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.kill(t) })
	if dir != "" {
		enter(t, dir, g.cmd.Process.Pid)
	}
	return g
}

// kill ends the virtual machine.
func (g *guest) kill(t *testing.T) {
	t.Helper()
	if g.cmd.ProcessState != nil {
		return
	}
	_ = g.cmd.Process.Kill() // it may have exited
	_ = g.cmd.Wait()         // killed above
	if g.err.Len() > 0 {
		t.Logf("QEMU: %s", g.err.String())
	}
}

func enter(t *testing.T, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// A fixture reads the groups and the virtual machines of this machine.
type fixture struct {
	t      *testing.T
	h      *hostfs.FS
	y      hostfs.Hierarchy
	groups *cgroup.Table
	vms    *vm.Table
	snap   usage.Snapshot
	log    *bytes.Buffer
}

func openFixture(t *testing.T, reader string, every int) *fixture {
	t.Helper()
	hosttest.Need(t, "qemu")
	return openWithoutQEMU(t, reader, every)
}

func openWithoutQEMU(t *testing.T, reader string, every int) *fixture {
	t.Helper()
	hosttest.Need(t, "root")
	hosttest.LockShared(t, "guests")
	s := &fixture{t: t, log: &bytes.Buffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	var err error
	if s.h, err = hostfs.Open("/"); err != nil {
		t.Fatal(err)
	}
	closing(t, s.h)
	if s.y, err = proc.Primary(s.h); err != nil {
		t.Fatal(err)
	}
	cfg, quiet := cgroup.Config{Node: "node", Boot: "boot", Every: 10, Files: 500}, slog.New(slog.DiscardHandler)
	if reader == "bpf" {
		hosttest.Need(t, "bpf")
		k, err := bpf.Open(bpf.Default())
		if err != nil {
			t.Fatal(err)
		}
		closing(t, k)
		s.groups, err = cgroup.OpenBPF(s.h, k, cfg, quiet)
		if err != nil {
			t.Fatal(err)
		}
	} else if s.groups, err = cgroup.OpenFiles(s.h, cfg, quiet); err != nil {
		t.Fatal(err)
	}
	closing(t, s.groups)
	if s.vms, err = vm.Open(s.h, vm.Config{Every: every}, slog.New(slog.NewTextHandler(s.log, nil))); err != nil {
		t.Fatal(err)
	}
	s.tick()
	return s
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (s *fixture) tick() {
	s.t.Helper()
	if err := s.groups.Read(&s.snap); err != nil {
		s.t.Fatal(err)
	}
	s.groups.Booked()
	if err := s.vms.Read(&s.snap, s.groups.Owner); err != nil {
		s.t.Fatal(err)
	}
}

// group returns the group at the path; nil if there is none.
func (s *fixture) group(p string) *usage.Group {
	for _, g := range s.snap.Groups {
		if g.Workload.Path == p {
			return g
		}
	}
	return nil
}

// find returns the virtual machine with the name, nil if unknown.
func (s *fixture) find(name string) *vm.VM {
	for _, v := range s.vms.All() {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// until ticks until f returns true.
func (s *fixture) until(what string, f func() bool) {
	s.t.Helper()
	testkit.Eventually(s.t, what, func() bool {
		s.tick()
		return f()
	})
}

// mkdir creates a group, and returns its directory. It is removed at the end.
func (s *fixture) mkdir(p string) string {
	s.t.Helper()
	dir, ok := s.y.Dir(p)
	if !ok {
		s.t.Fatalf("%s is not below %s", p, s.y.Mount)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { // a killed process takes a moment to leave
		testkit.Eventually(s.t, dir+" is removed", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
	})
	return dir
}

func top(t *testing.T, name string) string {
	return fmt.Sprintf("/mete-test-vm-%s-%d", name, os.Getpid())
}

const uuid = "6f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d99"
