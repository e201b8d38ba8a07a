package sources

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestVolumesOfSnapshot checks that a volume that a pod mounts is in one snapshot after it was measured.
func TestVolumesOfSnapshot(t *testing.T) {
	hosttest.Need(t, "root")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() }) // it was only read
	cfg := storage.Default()
	cfg.Kubelet = t.TempDir()
	at := filepath.Join(cfg.Kubelet, "pods", "uid", "volumes", "kubernetes.io~nfs", "pv-1")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(at, "a"), make([]byte, 12<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := storage.Open(h, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if why := table.Reason(); why != "" {
		t.Skip(why)
	}
	defer func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := &diskSpace{table: table}
	var s usage.Snapshot
	read := func() []usage.VolumeUse {
		if err := d.Read(&s); err != nil {
			t.Fatal(err)
		}
		return s.Volumes
	}
	if v := read(); len(v) > 0 {
		t.Errorf("%v without a pod", v)
	}
	table.Track(storage.Target{Slot: 1, Kind: workload.Pod, Key: "uid", Path: "/uid"})
	testkit.Eventually(t, "a figure", func() bool { return len(read()) > 0 })
	now, err := h.Boottime()
	if err != nil || s.Volumes[0].At > now {
		t.Errorf("measured at %d, and it is %d, %v", s.Volumes[0].At, now, err)
	}
	s.Volumes[0].At = 0
	if want := []usage.VolumeUse{{Pod: "uid", Volume: "pv-1", Used: 12 << 10, Size: 1 << 20}}; !slices.Equal(s.Volumes, want) {
		t.Errorf("%v, want %v", s.Volumes, want)
	}
	if v := read(); len(v) > 0 {
		t.Errorf("%v again", v)
	}
}
