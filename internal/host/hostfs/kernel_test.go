package hostfs_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/testkit/hosttest"
)

// group creates a group for the test in the first hierarchy that fits.
func group(t *testing.T, h *hostfs.FS, fits func(hostfs.Hierarchy) bool) string {
	t.Helper()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		if !fits(y) {
			continue
		}
		dir := filepath.Join(y.Mount, fmt.Sprintf("mete-test-host-%d-%s", os.Getpid(), t.Name()))
		if err := h.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		return dir
	}
	t.Fatal("no hierarchy fits")
	return ""
}

func TestGroupIDs(t *testing.T) {
	hosttest.Need(t, "cgroup1", "root")
	h := open(t, "/")
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	dir := group(t, h, func(hostfs.Hierarchy) bool { return true }) + "/below"
	if err := h.Mkdir(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	var want []uint64
	for _, d := range []string{dir, filepath.Dir(dir), ys[0].Mount} {
		id, err := h.ID(d)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	for n, d := range []string{dir, filepath.Dir(dir), ys[0].Mount} {
		if got, err := h.GroupIDs(ys[0], d); err != nil || !slices.Equal(got, want[n:]) {
			t.Errorf("%s: %v, %v; want %v", d, got, err, want[n:])
		}
	}
	if got, err := h.GroupIDs(ys[0], dir+"/gone"); err == nil {
		t.Errorf("a group that is gone has the ids %v", got)
	}
}

func TestRealGroup(t *testing.T) {
	hosttest.Need(t, "cgroup1", "root")
	h := open(t, "/")
	dir := group(t, h, func(y hostfs.Hierarchy) bool { return y.Has("cpuacct") && !y.V2 })
	id, err := h.ID(dir)
	if err != nil {
		t.Fatal(err)
	}
	// The file handle of a group holds its 64-bit id.
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := binary.NativeEndian.Uint64(handle.Bytes()); id != want {
		t.Errorf("ID = %d, want %d", id, want)
	}
	f, err := h.Open(dir + "/cpuacct.usage")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 64)
	n, err := f.Pread(buf)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := procfmt.Int(buf[:n]); v != 0 || err != nil {
		t.Errorf("cpuacct.usage of a new group = %d, %v", v, err)
	}
	if err := h.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Pread(buf); err != unix.ENODEV {
		t.Errorf("Pread of a group that is gone: %v, want ENODEV", err)
	}
}

func BenchmarkReadCPU(b *testing.B) {
	hosttest.Need(b, "cgroup1")
	h, err := hostfs.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		b.Fatal(err)
	}
	var p string
	for _, y := range ys {
		if y.Has("cpuacct") {
			p = y.Mount + "/cpuacct.usage"
		}
	}
	buf := make([]byte, 64)
	b.Run("os", func(b *testing.B) {
		for b.Loop() {
			if _, err := os.ReadFile(p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.ReadInto(p, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("kept", func(b *testing.B) {
		f, err := h.Open(p)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		for b.Loop() {
			if _, err := f.Pread(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
