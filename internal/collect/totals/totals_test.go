package totals_test

import (
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/totals"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

func open(t *testing.T, h *hostfs.FS, every int) *totals.Source {
	t.Helper()
	s, err := totals.Open(h, every, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func read(t *testing.T, s *totals.Source) usage.Node {
	t.Helper()
	var snap usage.Snapshot
	if err := s.Read(&snap); err != nil {
		t.Fatal(err)
	}
	return snap.Node
}

// Disk totals are those of leaf devices, without partitions, loop and stacked devices.
func TestCaptured(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			s := open(t, h, 10)
			for tick := range 2 {
				if tick == 1 {
					hosttest.Step(t, h)
				}
				n := read(t, s)
				if n.CPUs < 1 || n.MemTotal <= n.MemFree || n.MemFree <= 0 || n.MemAvail <= 0 {
					t.Errorf("tick %d: %+v", tick, n)
				}
				var want int64
				leaves, err := h.LeafDevices()
				if err != nil {
					t.Fatal(err)
				}
				b, err := h.ReadFile("/proc/diskstats")
				if err != nil {
					t.Fatal(err)
				}
				err = procfmt.Diskstats(b, func(d procfmt.Dev, name string, c procfmt.DiskIO) {
					if _, leaf := leaves[d]; leaf {
						want += c.WrittenBytes
						if strings.HasPrefix(name, "dm-") || strings.HasPrefix(name, "loop") {
							t.Errorf("%s counts as a leaf device", name)
						}
					}
				})
				if got := n.Total.Value[usage.DiskWritten]; err != nil || got != want || !n.Total.Has.Has(usage.DiskWritten) {
					t.Errorf("tick %d: %d bytes written, want %d, %v", tick, got, want, err)
				}
			}
		})
	}
}

// A kernel without block devices has absent disk totals, not zero.
func TestWithoutDisks(t *testing.T) {
	h := hosttest.Open(t, "slurm-v2")
	if err := os.Remove(h.Path("/proc/diskstats")); err != nil {
		t.Fatal(err)
	}
	if n := read(t, open(t, h, 1)); n.Total.Has != 0 {
		t.Errorf("totals of %b without a disk", n.Total.Has)
	}
}

func TestMalformed(t *testing.T) {
	for _, file := range []string{"/proc/stat", "/proc/meminfo", "/proc/diskstats"} {
		h := hosttest.Open(t, "slurm-v2")
		s := open(t, h, 1)
		read(t, s)
		if err := os.WriteFile(h.Path(file), []byte("cpu x\n8 0\nMemTotal: many kB\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := s.Read(&usage.Snapshot{}); err == nil {
			t.Errorf("%s: no error for a malformed file", file)
		}
	}
	h := hosttest.Open(t, "slurm-v2")
	for _, file := range []string{"/proc/meminfo", "/proc/stat"} {
		if err := os.Remove(h.Path(file)); err != nil {
			t.Fatal(err)
		}
		if _, err := totals.Open(h, 1, false); err == nil {
			t.Errorf("opened without %s", file)
		}
	}
}
