package powersim

import (
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/host/hostfs"
)

// TestCPUReader takes a group through its lives, on a captured machine.
func TestCPUReader(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/version", "Linux\n")
	put("mete/clocks", "boottime 1\nmonotonic 1\nrealtime 1\n")
	put("old/cpuacct.usage", "1000\n")
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	old, late := &cpuReader{host: h, load: Load{Group: "/old"}}, &cpuReader{host: h, load: Load{Group: "/late"}}
	expect := func(when string, wantOld, wantLate int64) {
		t.Helper()
		if a, b := old.used(), late.used(); a != wantOld || b != wantLate {
			t.Errorf("%s: %d and %d ns, want %d and %d", when, a, b, wantOld, wantLate)
		}
	}
	expect("at first, without the past", 0, 0)
	old.begun, late.begun = true, true
	put("old/cpuacct.usage", "1500\n")
	put("late/cpu.stat", "usage_usec 7\nuser_usec 7\n")
	expect("one continued, one was created", 500, 7000)
	if err := os.RemoveAll(filepath.Join(root, "old")); err != nil {
		t.Fatal(err)
	}
	put("late/cpu.stat", "usage_usec 9\nuser_usec 9\n")
	expect("one was removed", 0, 2000)
	put("old/cpuacct.usage", "1600\n")
	expect("recreated, used 1600", 1600, 0)
	put("old/cpuacct.usage", "1600\n")
	put("late/cpu.stat", "usage_usec 8\nuser_usec 8\n")
	expect("a decreasing counter counts as 0", 0, 0)
	for _, t1 := range []*cpuReader{old, late} {
		if err := t1.close(); err != nil {
			t.Error(err)
		}
	}
}
