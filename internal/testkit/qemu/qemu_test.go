package qemu_test

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/qemu"
	"mete.dev/mete/internal/testkit/vsockdev"
)

// A guest boots, sees changes of a host's file, runs programs, communicates over AF_VSOCK,
// and continues after a pause.
func TestBoot(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine")
	hosttest.Need(t, "qemu")
	kernel, err := qemu.FindKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mete-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	build := exec.Command("go", "build", "-o", dir+"/", "mete.dev/mete/internal/testkit/qemu/init", "mete.dev/mete/internal/testkit/qemu/peer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	share := filepath.Join(dir, "share")
	if err := os.Mkdir(share, 0o755); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	dev, err := vsockdev.Open(filepath.Join(dir, "vsock"), 7, mirror, log)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- dev.Run(t.Context()) }()
	began := time.Now()
	m, err := qemu.Boot(t.Context(), qemu.Config{
		Name: "mete-test-boot", UUID: "6d657465-0000-4000-8000-000000000001", CPUs: 1, Memory: 192, Kernel: kernel,
		Init: filepath.Join(dir, "init"), Files: map[string]string{"/bin/peer": filepath.Join(dir, "peer")},
		Shares: []qemu.Share{{Dir: share, Guest: "/share"}}, Network: true, Dir: dir, Args: vsockdev.Args(filepath.Join(dir, "vsock")),
	}, func(line string) { t.Log("guest:", line) }, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		_ = dev.Close() // ends Run
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Logf("booted in %v", time.Since(began))
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(share, "file"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := m.Read("/share/file"); err != nil || string(b) != text {
			t.Errorf("the guest reads %q, %v, want %q", b, err, text)
		}
	}
	uuid, err := m.Read("/sys/class/dmi/id/product_uuid")
	if err != nil || strings.TrimSpace(string(uuid)) != "6d657465-0000-4000-8000-000000000001" {
		t.Errorf("uuid %q, %v", uuid, err)
	}
	run := func(args ...string) {
		t.Helper()
		pid, err := m.Start("/sys/fs/cgroup/test", nil, append([]string{"/bin/peer"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := m.Wait(pid, time.Minute); err != nil || code != 0 {
			t.Fatalf("%v: exit code %d, %v", args, code, err)
		}
	}
	run("mirror", "2", "5", "100")     // host, port, bytes
	run("mirror", "2", "5", "3000000") // more than any window
	run("refused", "2", "6")
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	run("mirror", "2", "5", "100000")
}

// mirror is a host that echoes at port 5.
func mirror(port uint32) (net.Conn, error) {
	if port != 5 {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	go func() {
		r := bufio.NewReaderSize(ours, 1<<16)
		_, _ = io.Copy(ours, r) // until the guest closes
		_ = ours.Close()
	}()
	return theirs, nil
}
