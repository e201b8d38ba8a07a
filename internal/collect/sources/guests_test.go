package sources_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A virtual machine in a group of its own is in the snapshots of both readers while it
// runs.
func TestGuest(t *testing.T) {
	for _, reader := range []string{sources.BPF, sources.Files} {
		t.Run(reader, func(t *testing.T) {
			hosttest.Need(t, "root", "qemu")
			hosttest.LockShared(t, "cut-paths")
			hosttest.LockShared(t, "guests")
			if reader == sources.BPF {
				hosttest.Need(t, "bpf")
			}
			cfg := everyTick(reader)
			cfg.Energy.Powercap = t.TempDir()
			m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, m)
			liveTick(t, m)
			p := fmt.Sprintf("/mete-test-guest-of-%d", os.Getpid())
			qemu := bootIn(t, p)
			find := func() *usage.Guest {
				for _, g := range m.Snapshot().Groups {
					if g.Workload.Path == p {
						return g.Guest
					}
				}
				return nil
			}
			g := (*usage.Guest)(nil)
			testkit.Eventually(t, "a guest of two CPUs", func() bool { // its threads start one by one
				liveTick(t, m)
				g = find()
				return g != nil && g.VCPUs == 2
			})
			if g.Name != "probe" || g.UUID != "6f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d77" || g.VCPUs != 2 {
				t.Fatalf("guest %+v", g)
			}
			found := false
			for _, v := range m.Guests() {
				if int(v.PID) != qemu.Process.Pid {
					continue
				}
				found = true
				testkit.Eventually(t, "the guest's CPU time", func() bool { // the kernel counts some of it only at clock ticks
					x, err := m.GuestTimes(v)
					if err != nil {
						t.Fatal(err)
					}
					return x.CPU > 0
				})
				if v.RejectReason != "" {
					t.Errorf("%+v", v)
				}
			}
			if !found {
				t.Error("Guests() lacks it")
			}
			if err := qemu.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = qemu.Wait() // killed above
			liveTick(t, m)
			if g := find(); g != nil {
				t.Errorf("guest %+v after its end", g)
			}
		})
	}
}

// bootIn starts a virtual machine without a disk in a new group.
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
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
		// A killed process takes a moment to leave its group.
		testkit.Eventually(t, dir+" is removed", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return cmd
}
