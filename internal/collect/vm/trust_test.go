package vm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// A pretender is a program with QEMU's name, a shell that waits.
type pretender struct {
	owner int // of its file
	uid   int // as whom it runs
}

// start starts it in a group, with the command line of a virtual machine.
func (p pretender) start(t *testing.T, s *fixture, group string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "qemu-system-x86_64")
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(file, sh, 0o755), os.Chown(file, p.owner, -1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(file, "-c", "read x; exit", "-name", "guest=victim", "-uuid", uuid, "-device", "vhost-vsock-pci,guest-cid=7")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	at := s.mkdir(group)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	enter(t, at, cmd.Process.Pid)
	s.until("a guest in "+group, func() bool { o := s.group(group); return o != nil && o.Guest != nil })
}

// TestPretenders checks whose word counts for UUID, name and vsock address of a virtual machine: that
// of a program of root which runs as a user of the system; and of two the first.
func TestPretenders(t *testing.T) {
	const other = 65534
	s := openWithoutQEMU(t, "files", 1)
	full := usage.Guest{UUID: uuid, Name: "victim", CID: 7}
	guest := func(group string) usage.Guest {
		g := *s.group(group).Guest
		g.VCPUs, g.GID = 0, 0
		return g
	}
	for name, p := range map[string]pretender{"program-of-another": {other, 0}, "run-by-another": {0, other}, "both": {other, other}} {
		group := top(t, name)
		p.start(t, s, group)
		if got := guest(group); got != (usage.Guest{}) {
			t.Errorf("%s: %+v, want nothing", name, got)
		}
	}
	first, second := top(t, "first"), top(t, "second")
	pretender{0, 100}.start(t, s, first)
	pretender{0, 0}.start(t, s, second)
	s.tick()
	if got := guest(first); got != full {
		t.Errorf("the first: %+v, want %+v", got, full)
	}
	if gid := s.group(first).Guest.GID; gid != 100 {
		t.Errorf("the first has group %d, want 100", gid)
	}
	if got := guest(second); got != (usage.Guest{Name: "victim"}) {
		t.Errorf("the second: %+v, want a name alone", got)
	}
}
