package scope

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A busy machine may take long to move a process.
func init() { startTimeout = 1000 * time.Hour }

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		group string
		uid   int
		slice string
		chain []string
	}{
		{"/", 0, "-.slice", nil},
		{"/init.scope", 0, "-.slice", []string{"/init.scope"}},
		{"/system.slice/cron.service", 0, "system.slice", []string{"/system.slice/cron.service"}},
		{"/user.slice/user-0.slice/session-1.scope", 0, "user-0.slice", []string{"/user.slice/user-0.slice/session-1.scope"}},
		{"/user.slice/user-7.slice/session-1.scope", 7, "", []string{"/user.slice/user-7.slice/session-1.scope"}},
		{"/user.slice/user-7.slice/user@7.service/app.slice/app-term.slice/x.scope/y", 7, "app-term.slice", []string{
			"/user.slice/user-7.slice/user@7.service/app.slice/app-term.slice/x.scope/y",
			"/user.slice/user-7.slice/user@7.service/app.slice/app-term.slice/x.scope"}},
		{"/user.slice/user-7.slice/user@7.service/init.scope", 7, "-.slice", []string{"/user.slice/user-7.slice/user@7.service/init.scope"}},
		{"/user.slice/user-7.slice/user@7.service", 7, "-.slice", nil},
		{"", 0, "-.slice", nil},
	} {
		slice, chain := locate(c.group, c.uid)
		if d := cmp.Diff(c.chain, chain); slice != c.slice || d != "" && c.group != "" {
			t.Errorf("locate(%q, %d) = %q, %q, want %q, %q", c.group, c.uid, slice, chain, c.slice, c.chain)
		}
	}
}

// tree creates a machine of these files.
func tree(t *testing.T, files map[string]string) (*hostfs.FS, hostfs.Hierarchy) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h, hostfs.Hierarchy{V2: true, Mount: dir, Root: "/"}
}

// TestCarry checks that no limit is escaped: one of tasks is copied, any other prevents the scope.
func TestCarry(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		tasks uint64
		err   error
	}{
		{map[string]string{"a/b/pids.max": "max\n", "a/b/cpu.max": "max 100000\n", "a/b/io.max": "\n", "a/memory.max": "1\n"}, math.MaxUint64, nil},
		{map[string]string{"a/b/pids.max": "90\n", "a/b/c/pids.max": "70\n"}, 70, nil},
		{map[string]string{"a/b/cpu.max": "50000 100000\n"}, 0, fault.ErrDenied},
		{map[string]string{"a/b/c/memory.high": "4096\n"}, 0, fault.ErrDenied},
		{map[string]string{"a/b/cpuset.cpus": "0-1\n"}, 0, fault.ErrDenied},
	} {
		h, y := tree(t, c.files)
		tasks, err := tasksLimit(h, y, []string{"/a/b/c", "/a/b"})
		if tasks != c.tasks || !errors.Is(err, c.err) {
			t.Errorf("tasksLimit of %v = %d, %v, want %d, %v", c.files, tasks, err, c.tasks, c.err)
		}
	}
}

// manager is a systemd with one method: it creates the scope's group and moves the processes into
// it.
type manager struct {
	dir   string
	calls chan map[string]any
}

func (m *manager) StartTransientUnit(name, mode string, ps []property, _ []aux) (dbus.ObjectPath, *dbus.Error) {
	got := map[string]any{"name": name, "mode": mode}
	for _, p := range ps {
		got[p.Name] = p.Value.Value()
	}
	m.calls <- got
	scope := filepath.Join(m.dir, name)
	if err := os.Mkdir(scope, 0o755); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	for _, pid := range got["PIDs"].([]uint32) {
		if err := os.WriteFile(scope+"/cgroup.procs", fmt.Append(nil, pid), 0); err != nil {
			return "", dbus.MakeFailedError(err)
		}
	}
	return "/org/freedesktop/systemd1/job/1", nil
}

// bus starts a separate bus on which m is systemd.
func bus(t *testing.T, m *manager) {
	t.Helper()
	hosttest.Need(t, "dbus")
	c := exec.Command("dbus-daemon", "--session", "--nofork", "--print-address", "--address=unix:dir="+t.TempDir())
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // Wait follows
		_ = c.Wait()
	})
	b := make([]byte, 4096)
	n, err := out.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(string(b[:n]))
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := conn.Export(m, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		t.Fatal(err)
	}
	if r, err := conn.RequestName("org.freedesktop.systemd1", 0); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(r, err)
	}
}

// TestEnter moves its process, so it runs in a separate one.
func TestEnter(t *testing.T) {
	hosttest.Need(t, "root", "cgroup2")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	y := ys[0]
	if os.Getenv("METE_TEST_SCOPE") == "" {
		dir, _ := y.Dir(y.Self)
		dir += fmt.Sprintf("/mete-test-%d", os.Getpid())
		if err := h.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestEnter$", "-test.v")
		cmd.Env = append(os.Environ(), "METE_TEST_SCOPE="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for _, d := range []string{"/mete-x.scope/" + leaf, "/mete-x.scope", ""} {
			if err := h.Rmdir(dir + d); err != nil {
				t.Error(err)
			}
		}
		return
	}
	m := &manager{os.Getenv("METE_TEST_SCOPE"), make(chan map[string]any, 1)}
	bus(t, m)
	group, err := Enter(context.Background(), h, y, "x")
	if err != nil {
		t.Fatal(err)
	}
	if dir, _ := y.Dir(group); dir != m.dir+"/mete-x.scope" {
		t.Errorf("the scope's group is %s", dir)
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || !strings.Contains(string(b), "/mete-x.scope/"+leaf+"\n") {
		t.Errorf("%v: this process is in\n%s", err, b)
	}
	slice, _ := locate(y.Self, 0)
	want := map[string]any{
		"name": "mete-x.scope", "mode": "fail", "Description": "job of mete run", "PIDs": []uint32{uint32(os.Getpid())},
		"Delegate": true, "CollectMode": "inactive-or-failed", "TasksMax": uint64(math.MaxUint64), "Slice": slice,
	}
	if d := cmp.Diff(want, <-m.calls); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestNoSessionBus checks that without a session bus none is started.
func TestNoSessionBus(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dbus-launch"), []byte("#!/bin/sh\n>"+dir+"/launched\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	if err := start(context.Background(), 1, "mete-x.scope", "", math.MaxUint64); !errors.Is(err, fault.ErrUnsupported) {
		bus := fmt.Sprintf("/run/user/%d/bus", os.Getuid())
		if _, err := os.Stat(bus); err == nil {
			t.Skip("the user of the test has a session bus at " + bus)
		}
		t.Errorf("without a session bus: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "launched")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a bus was started: %v", err)
	}
}

// TestSessionBus checks that start reaches a user's manager over the session bus.
func TestSessionBus(t *testing.T) {
	m := &manager{t.TempDir(), make(chan map[string]any, 1)}
	bus(t, m)
	// The manager creates the scope in an ordinary directory here.
	if err := start(context.Background(), 1, "mete-x.scope", "app.slice", 70); err != nil {
		t.Fatal(err)
	}
	if got := <-m.calls; got["name"] != "mete-x.scope" || got["Slice"] != "app.slice" || got["TasksMax"] != uint64(70) {
		t.Errorf("%v", got)
	}
}

func TestNoBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent")
	h, y := tree(t, nil)
	if _, err := Enter(context.Background(), h, y, "x"); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("Enter = %v, want unsupported", err)
	}
}
