package hostfs_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

func open(t *testing.T, root string) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// captured creates a captured machine with the given files, by path.
func captured(t *testing.T, files map[string]string) (*hostfs.FS, string) {
	t.Helper()
	root := t.TempDir()
	files["mete/clocks"] = "boottime 30\nmonotonic 20\nrealtime 1000\n"
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, root), root
}

func TestThisMachine(t *testing.T) {
	h := open(t, "/")
	if !h.Live() {
		t.Error("Live() = false, want true")
	}
	id, err := h.BootID()
	if err != nil || len(id) != 36 {
		t.Errorf("BootID() = %q, %v, want 36 characters", id, err)
	}
	if b, err := h.ReadFile("/proc/stat"); err != nil || !strings.HasPrefix(string(b), "cpu ") {
		t.Errorf("ReadFile(/proc/stat) = %.20q, %v", b, err)
	}
	a, err := h.Clocks()
	if err != nil {
		t.Fatal(err)
	}
	now, err := h.Boottime()
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Clocks()
	if err != nil || b.Boottime <= a.Boottime || b.Boottime < a.Monotonic {
		t.Errorf("Clocks() = %v then %v, %v", a, b, err)
	}
	if now < a.Boottime || now > b.Boottime {
		t.Errorf("Boottime() = %d, want between %d and %d", now, a.Boottime, b.Boottime)
	}
	for _, p := range []string{"/proc/sys/kernel/osrelease", "proc/self/stat"} {
		if _, err := h.ReadFile(p); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorKinds(t *testing.T) {
	h := open(t, "/")
	_, err := h.ReadFile("/proc/self/no-such")
	if !errors.Is(err, fault.ErrNotFound) || !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "/proc/self/no-such: ") {
		t.Errorf("ReadFile of a missing file: %v", err)
	}
	for errno, want := range map[unix.Errno]error{
		unix.ENODEV: fault.ErrNotFound, unix.EPERM: fault.ErrDenied, unix.EACCES: fault.ErrDenied,
		unix.EOPNOTSUPP: fault.ErrUnsupported, unix.ENOSYS: fault.ErrUnsupported, unix.EBUSY: fault.ErrConflict,
	} {
		if err := hostfs.Kind("/x", errno); !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("Kind(%v) = %v, want one wrapping %v", errno, err, want)
		}
	}
	if err := hostfs.Kind("/x", nil); err != nil {
		t.Errorf("Kind(nil) = %v, want nil", err)
	}
	if err := hostfs.Kind("/x", unix.EIO); errors.Is(err, fault.ErrNotFound) || !errors.Is(err, unix.EIO) {
		t.Errorf("Kind(EIO) = %v", err)
	}
}

func TestCapturedStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	h, root := captured(t, map[string]string{"sys/a/b": "inside\n"})
	for name, to := range map[string]string{"sys/up": "../../../../../../.." + outside, "sys/abs": outside, "sys/ok": "a/b"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"/sys/up", "/sys/abs", "../.." + outside} {
		if b, err := h.ReadFile(p); err == nil {
			t.Errorf("ReadFile(%s) = %q, want an error", p, b)
		}
	}
	for _, p := range []string{"/sys/ok", "/sys/../sys/a/b", "sys/a/b", "/../sys/a/b"} {
		if b, err := h.ReadFile(p); err != nil || string(b) != "inside\n" {
			t.Errorf("ReadFile(%s) = %q, %v", p, b, err)
		}
	}
	if now, err := h.Boottime(); err != nil || now != 30 {
		t.Errorf("Boottime() = %d, %v, want 30", now, err)
	}
	c, err := h.Clocks()
	if want := (hostfs.Clocks{Boottime: 30, Monotonic: 20, Realtime: 1000}); err != nil || c != want {
		t.Errorf("Clocks() = %v, %v, want %v", c, err, want)
	}
	if h.Live() {
		t.Error("Live() = true, want false")
	}
}

func TestOpenFile(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	h, root := captured(t, map[string]string{"sys/long": long})
	f, err := h.Open("/sys/long")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 16)
	if n, err := f.Pread(buf); err != nil || string(buf[:n]) != long[:16] {
		t.Errorf("Pread = %q, %v", buf[:n], err)
	}
	if b, err := f.ReadInto(buf); err != nil || string(b) != long {
		t.Errorf("ReadInto: %d bytes, %v, want %d", len(b), err, len(long))
	}
	big := make([]byte, 0, 20000)
	if n := testing.AllocsPerRun(10, func() {
		if b, err := f.ReadInto(big); err != nil || len(b) != len(long) {
			t.Error(len(b), err)
		}
	}); n != 0 {
		t.Errorf("ReadInto with room allocates %v times, want 0", n)
	}
	// The files of a removed group are gone.
	if err := os.Remove(filepath.Join(root, "sys/long")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Pread(buf); err != unix.ENODEV {
		t.Errorf("Pread of a removed file: %v, want ENODEV", err)
	}
	if _, err := f.ReadInto(buf); err != unix.ENODEV {
		t.Errorf("ReadInto of a removed file: %v, want ENODEV", err)
	}
}

func TestWriteAndGroups(t *testing.T) {
	h, _ := captured(t, map[string]string{"sys/limit": "1234567\n", "mete/ids": "77 /sys/group\n"})
	if err := h.WriteFile("/sys/limit", []byte("5\n")); err != nil {
		t.Error(err)
	}
	if b, err := h.ReadFile("/sys/limit"); err != nil || string(b) != "5\n" {
		t.Errorf("after WriteFile: %q, %v", b, err)
	}
	if err := h.WriteFile("/sys/none", nil); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("WriteFile of a missing file: %v", err)
	}
	if err := h.Mkdir("/sys/group"); err != nil {
		t.Error(err)
	}
	if err := h.Mkdir("/sys/group"); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Mkdir again: %v, want a conflict", err)
	}
	if id, err := h.ID("/sys/group"); id != 77 || err != nil {
		t.Errorf("ID = %d, %v, want 77", id, err)
	}
	if err := h.Rmdir("/sys/group"); err != nil {
		t.Error(err)
	}
	if _, err := h.ID("/sys/group"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("ID of a removed group: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	if h, err := hostfs.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Open of a missing root = %v, %v", h, err)
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if h, err := hostfs.Open(root); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Open without clocks = %v, %v", h, err)
	}
}

// TestReadStart reads no more than the limit, and a shorter file whole.
func TestReadStart(t *testing.T) {
	dir := t.TempDir()
	text := bytes.Repeat([]byte("0123456789"), 5000)
	if err := os.WriteFile(dir+"/f", text, 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	var got []byte
	for _, limit := range []int{1, 100, 16 << 10, 40_000, 50_000, 50_001, 1 << 20, 20} {
		got, err = h.ReadStart(dir+"/f", got, limit)
		if want := text[:min(limit, len(text))]; err != nil || !bytes.Equal(got, want) {
			t.Errorf("at most %d: %d bytes, %v, want %d", limit, len(got), err, len(want))
		}
	}
	if _, err := h.ReadStart(dir+"/none", nil, 10); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a file that does not exist: %v", err)
	}
}
