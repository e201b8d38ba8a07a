package machine_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"mete.dev/mete/internal/hosttest"
	"mete.dev/mete/internal/machine"
	"mete.dev/mete/internal/meter"
)

// A virtual machine in a group of its own is in the snapshots of either reader as
// long as it runs.
func TestGuest(t *testing.T) {
	for _, reader := range []string{machine.BPF, machine.Files} {
		t.Run(reader, func(t *testing.T) {
			hosttest.Need(t, "root", "qemu")
			if reader == machine.BPF {
				hosttest.Need(t, "bpf")
			}
			cfg := everyTick(reader)
			cfg.Energy.Powercap = t.TempDir()
			m, err := machine.Open(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, m)
			mustTick(t, m)
			p := fmt.Sprintf("/mete-test-guest-of-%d", os.Getpid())
			qemu := bootIn(t, p)
			find := func() *meter.Guest {
				for _, g := range m.Snapshot().Groups {
					if g.Workload.Path == p {
						return g.Guest
					}
				}
				return nil
			}
			g := (*meter.Guest)(nil)
			for end := time.Now().Add(20 * time.Second); (g == nil || g.VCPUs < 2) && time.Now().Before(end); { // its threads begin one by one
				time.Sleep(20 * time.Millisecond)
				mustTick(t, m)
				g = find()
			}
			if g == nil || g.Name != "probe" || g.UUID != "6f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d77" || g.VCPUs != 2 {
				t.Fatalf("guest %+v", g)
			}
			found := false
			for _, v := range m.Guests() {
				if int(v.PID) != qemu.Process.Pid {
					continue
				}
				found = true
				x, err := m.GuestTimes(v)
				for end := time.Now().Add(10 * time.Second); err == nil && x.CPU == 0 && time.Now().Before(end); { // the kernel counts some of it only at its own ticks
					time.Sleep(10 * time.Millisecond)
					x, err = m.GuestTimes(v)
				}
				if err != nil || v.Refused != "" || x.CPU <= 0 {
					t.Errorf("%+v: %+v, %v", v, x, err)
				}
			}
			if !found {
				t.Error("it is not among the machine's virtual machines")
			}
			if err := qemu.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = qemu.Wait() // as it was killed
			mustTick(t, m)
			if g := find(); g != nil {
				t.Errorf("guest %+v after its end", g)
			}
		})
	}
}

// bootIn starts a virtual machine without a disk in a group that it makes.
func bootIn(t *testing.T, p string) *exec.Cmd {
	t.Helper()
	mounts, _ := hierarchies(t)
	dir := filepath.Join(mounts[0], p)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel", "tcg", "-m", "16", "-smp", "2",
		"-name", "probe,debug-threads=on", "-uuid", "6f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d77")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		var err error
		for range 100 { // what was killed takes a moment to leave
			if err = os.Remove(dir); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Error(err)
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return cmd
}
