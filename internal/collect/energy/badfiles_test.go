package energy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// TestNotFiles reads a directory with entries that are not zone files: pipes without a
// writer, endless devices, cyclic links. No read blocks, and each entry but the good one
// has an error.
func TestNotFiles(t *testing.T) {
	dir := t.TempDir()
	zone := func(id string) string {
		p := filepath.Join(dir, "intel-rapl:"+id)
		put(t, filepath.Join(p, "name"), "package-"+id+"\n")
		return filepath.Join(p, "energy_uj")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put(t, zone("0"), "123\n")
	must(unix.Mkfifo(zone("1"), 0o644))
	must(os.Symlink("/dev/zero", zone("2")))
	must(os.Symlink("energy_uj", zone("3")))
	put(t, zone("4"), "-5 \x00")
	put(t, zone("5"), "1e9\n")
	put(t, zone("6"), strings.Repeat("7", 1<<20))
	put(t, zone("7"), "77\n")
	must(unix.Mkfifo(filepath.Join(dir, "intel-rapl:7", "max_energy_range_uj"), 0o644))
	must(os.Remove(filepath.Join(dir, "intel-rapl:7", "name")))
	must(unix.Mkfifo(filepath.Join(dir, "intel-rapl:7", "name"), 0o644))
	put(t, zone("8"), "88\n")
	must(os.Remove(filepath.Join(dir, "intel-rapl:8", "name")))
	must(os.Symlink("/dev/zero", filepath.Join(dir, "intel-rapl:8", "name")))
	must(os.Symlink("intel-rapl:9", filepath.Join(dir, "intel-rapl:9")))

	h, err := hostfs.Open("/")
	must(err)
	s := open(t, h, energy.Config{Powercap: dir})
	got := show(t, s) // a blocking read would hang here
	want := []string{"rapl/package-0 123", ": a pipe or a device, not a file: invalid", ": a pipe or a device, not a file: invalid",
		": too many levels of symbolic links", ": not a number: invalid", ": not a number: invalid", ": not a number: invalid"}
	if len(got) != len(want) {
		t.Fatalf("%d meters, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasSuffix(got[i], want[i]) {
			t.Errorf("%q, want suffix %q", got[i], want[i])
		}
	}
	if errs := s.OpenErrors(); len(errs) != 9 { // all but the good one
		t.Errorf("%d refused: %v", len(errs), errs)
	}
}

// TestReplaced replaces files by new ones, as a simulator may, unlike the kernel.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "intel-rapl:0", "energy_uj")
	put(t, filepath.Join(dir, "intel-rapl:0", "name"), "package-0\n")
	replace := func(text string) {
		t.Helper()
		put(t, p+".new", text)
		if err := os.Rename(p+".new", p); err != nil {
			t.Fatal(err)
		}
	}
	replace("1\n")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, h, energy.Config{Powercap: dir})
	expect := func(want string) {
		t.Helper()
		if got := show(t, s); len(got) != 1 || got[0] != "rapl/package-0 "+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	expect("1")
	replace("2\n")
	expect("2")
	replace("nothing\n")
	expect("0 " + p + ": not a number: invalid")
	replace("3\n")
	expect("3")
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	expect("0 " + p + ": no such file or directory")
}

// A directory without counters is an error, since the operator named it.
func TestNoCounters(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := open(t, h, energy.Config{Powercap: dir})
	errs := s.OpenErrors()
	if len(errs) != 1 || !errors.Is(errs[0], fault.ErrUnsupported) || !strings.Contains(errs[0].Error(), dir) || !strings.Contains(fault.Hint(errs[0]), "intel-rapl:0/energy_uj") {
		t.Errorf("refused: %v", errs)
	}
}
