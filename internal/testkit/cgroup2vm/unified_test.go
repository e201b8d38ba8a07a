// Package cgroup2vm runs tests of other packages in a virtual machine whose control groups are
// version 2 alone, with all controllers, as most machines have them.
package cgroup2vm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/qemu"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// programs are the packages whose tests run in the virtual machine, and which of their tests.
var programs = []struct{ pkg, tests string }{
	{"collect/cgroup", "^Test(Unified|Lives|TicksNotBooked|Folding|OwnerOfContainer)"},
	{"collect/sources", "^TestUnified"},
	{"host/bpf", "^TestTranslated$"},
	{"host/vsock", "^Test(Listen|Conn)"},
	{"job/launch", "^TestUnified"},
}

const (
	diskSize = 64 << 20
	// limit is how long the tests of one package may take.
	limit = 10 * time.Minute
)

// On a kernel with cgroup v2 alone and the controllers cpu, io, memory and pids, each test passes,
// and none is skipped.
func TestInGuest(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine and runs other packages' tests there")
	hosttest.Need(t, "qemu")
	dir, err := os.MkdirTemp("", "mete-vm-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	files := map[string]string{}
	for _, p := range programs {
		name := filepath.Base(p.pkg) + ".test"
		files["/bin/"+name] = filepath.Join(dir, name)
		goTool(t, "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(dir, name), "mete.dev/mete/internal/"+p.pkg)
	}
	if err := qemu.Build(t.Context(), filepath.Join(dir, "init"), "internal/testkit/qemu/init"); err != nil {
		t.Fatal(err)
	}
	var console syncbuf.Buffer
	m := boot(t, dir, files, &console)
	for _, p := range programs {
		name := filepath.Base(p.pkg) + ".test"
		t.Run(p.pkg, func(t *testing.T) {
			from := len(console.String())
			pid, err := m.Start("", []string{"METE_MUST=root,cgroup2,bpf,unified,vsock", "METE_TEST_UNIFIED=/sys/fs/cgroup", "METE_TEST_DISK=/dev/vda", "METE_HOST_VSOCK=false"},
				"/bin/"+name, "-test.v", "-test.count=1", "-test.timeout="+(limit-time.Minute).String(), "-test.run="+p.tests)
			if err != nil {
				t.Fatal(err)
			}
			code, err := m.Wait(pid, limit)
			out := console.String()[from:]
			t.Logf("in the guest:\n%s", out)
			if err != nil || code != 0 {
				t.Errorf("%s in the guest: exit code %d, %v", name, code, err)
			}
			if strings.Contains(out, "--- SKIP: ") {
				t.Error("tests were skipped")
			}
			for _, want := range names(t, filepath.Join(dir, name), p.tests) {
				if !strings.Contains(out, "--- PASS: "+want+" ") {
					t.Errorf("%s did not pass", want)
				}
			}
		})
	}
}

// boot starts a virtual machine with two CPUs and an empty disk.
func boot(t *testing.T, dir string, files map[string]string, console *syncbuf.Buffer) *qemu.Machine {
	t.Helper()
	kernel, err := qemu.FindKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "disk")
	err = os.WriteFile(disk, nil, 0o600)
	if err = errors.Join(err, os.Truncate(disk, diskSize)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m, err := qemu.Boot(t.Context(), qemu.Config{
		Name: "mete-test-unified", UUID: "6d657465-0000-4000-8000-000000000002", CPUs: 2, Memory: 512, Kernel: kernel,
		Init: filepath.Join(dir, "init"), Files: files, Dir: dir,
		Args: []string{"-drive", "file=" + disk + ",if=none,id=disk,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=disk"},
	}, func(line string) { fmt.Fprintln(console, line) }, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatalf("%v\n%s", err, console)
	}
	t.Cleanup(m.Close)
	t.Logf("booted %s in %.1f s", filepath.Base(kernel.Image), time.Since(began).Seconds())
	return m
}

// goTool runs the go command for a program that is linked statically.
func goTool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}

// names lists the tests of a test program.
func names(t *testing.T, program, pattern string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "-test.list="+pattern).Output()
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Fields(string(out))
	if len(list) == 0 {
		t.Fatalf("%s has no test %s", program, pattern)
	}
	return list
}
