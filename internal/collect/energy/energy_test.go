package energy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/hosttest"
)

// machine opens a machine of testdata.
func machine(t *testing.T, name string) *hostfs.FS {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return hosttest.Unpack(t, b)
}

func open(t *testing.T, h *hostfs.FS, cfg energy.Config) *energy.Source {
	t.Helper()
	s, err := energy.Open(h, cfg)
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

// show returns the readings of a source, one per line.
func show(t *testing.T, s *energy.Source) (lines []string) {
	t.Helper()
	rs, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %d %s", s.Meters()[r.Meter].Name, r.Value, r.Err)))
	}
	return lines
}

func TestMachines(t *testing.T) {
	const (
		ms      = 1e6
		rapl    = 262143328911 // 2^32 units of 61.035 uJ
		dram    = 65712999628  // of 15.3 uJ
		amd     = 65532611002
		reading = 50_000
	)
	pkg := func(name string, wrap, step int64) power.Meter {
		return power.Meter{Name: name, Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Wrap: wrap, Step: step, Every: ms, ErrorPPM: reading}
	}
	mem := func(name string) power.Meter {
		return power.Meter{Name: name, Level: power.Part, Domain: power.DRAM, Kind: power.Energy, From: power.Powercap, Wrap: dram, Step: 16, Every: ms, ErrorPPM: 200_000}
	}
	psys := power.Meter{Name: "rapl/psys", Level: power.Board, Domain: power.Rest, Kind: power.Energy, From: power.Powercap, Wrap: rapl, Step: 62, Every: ms, ErrorPPM: 100_000}
	socket := func(n int) power.Meter {
		return power.Meter{Name: fmt.Sprint("hwmon/amd_energy/Esocket", n), Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Hwmon, Step: 125, Every: ms, ErrorPPM: reading}
	}
	board := func(name string, step, every, ppm int64) power.Meter {
		return power.Meter{Name: "hwmon/" + name, Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon, Step: step, Every: every, ErrorPPM: ppm}
	}
	grace := board("grace-0", 1000, 1050*ms, reading)
	grace.Level, grace.Domain = power.Part, power.Package
	tests := []struct {
		name   string
		meters []power.Meter
		shown  []string
	}{
		{"intel-1s", []power.Meter{pkg("rapl/package-0", rapl, 62), mem("rapl/package-0/dram"), psys},
			[]string{"rapl/package-0 262143000000", "rapl/package-0/dram 40000", "rapl/psys 900000000"}},
		{"intel-2s", []power.Meter{pkg("rapl/package-0", rapl, 62), mem("rapl/package-0/dram"), pkg("rapl/package-1", rapl, 62), mem("rapl/package-1/dram"), psys,
			board("power_meter/ACPI000D:00", 1e6, 2000*ms, reading)},
			[]string{"rapl/package-0 1000000", "rapl/package-0/dram 50000", "rapl/package-1 2000000", "rapl/package-1/dram 100000", "rapl/psys 7000000", "hwmon/power_meter/ACPI000D:00 212000000"}},
		{"amd", []power.Meter{pkg("rapl/package-0", amd, 16)}, []string{"rapl/package-0 123456789"}},
		{"amd-hwmon", []power.Meter{socket(0), socket(1)}, []string{"hwmon/amd_energy/Esocket0 5000000001", "hwmon/amd_energy/Esocket1 5000000002"}},
		{"acpi", []power.Meter{board("power_meter/ACPI000D:00", 1e6, 5000*ms, 19_950)}, []string{"hwmon/power_meter/ACPI000D:00 212000000"}},
		{"grace", []power.Meter{board("module-0", 1000, 1050*ms, reading), grace}, []string{"hwmon/module-0 395000000", "hwmon/grace-0 151000000"}},
		{"none", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := machine(t, tt.name)
			s := open(t, h, energy.Config{})
			if diff := cmp.Diff(tt.meters, s.Meters()); diff != "" {
				t.Errorf("Meters() (-want +got):\n%s", diff)
			}
			if errs := s.OpenErrors(); len(errs) > 0 {
				t.Errorf("OpenErrors() = %v, want none", errs)
			}
			if diff := cmp.Diff(tt.shown, show(t, s)); diff != "" {
				t.Errorf("Read() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrap(t *testing.T) {
	h := machine(t, "intel-1s")
	s := open(t, h, energy.Config{})
	a, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	hosttest.Step(t, h)
	b, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	if a[0].At != 5e9 || b[0].At != 6e9 {
		t.Errorf("read at %d and %d, want 5 s and 6 s", a[0].At, b[0].At)
	}
	// The second tick shows 1 J more, across a wrap.
	if used := b[0].Value - a[0].Value + s.Meters()[0].Wrap; used != 1000061 {
		t.Errorf("across the wrap: %d uJ, want 1000061", used)
	}
}

// Present power is sampled once per interval; between samples the last one holds, and a
// missing sample is an error.
func TestSampled(t *testing.T) {
	h := machine(t, "acpi")
	p := h.Path("/sys/class/hwmon/hwmon0/device/power1_average")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, h, energy.Config{})
		expect := func(when string, at int64, want string) {
			t.Helper()
			rs, err := s.Read(nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(rs) != 1 || rs[0].At != at*1e9 || strings.TrimSpace(fmt.Sprint(rs[0].Value, " ", rs[0].Err)) != want {
				t.Errorf("%s: %+v, want one of %s at %d s", when, rs, want, at)
			}
		}
		expect("at once", 5, "212000000")
		put(t, p, "220000000\n")
		clock(t, h, 6)
		expect("before Run", 6, "212000000")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(1100 * time.Millisecond)
		expect("after an interval", 6, "220000000")
		put(t, p, "no\n")
		time.Sleep(time.Second)
		expect("malformed", 6, "0 /sys/class/hwmon/hwmon0/device/power1_average: not a number: invalid")
		put(t, p, "230000000\n")
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		clock(t, h, 16)
		expect("late", 16, "230000000")
		clock(t, h, 17)
		expect("without Run", 17, "0 no new sample")
	})
}

// clock sets CLOCK_BOOTTIME of a captured machine, in s.
func clock(t *testing.T, h *hostfs.FS, sec int) {
	t.Helper()
	put(t, h.Path("/mete/clocks"), fmt.Sprintf("boottime %d000000000\nmonotonic 1\nrealtime 1\n", sec))
}

func put(t *testing.T, p, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTrouble takes one zone through all kinds of trouble, while the others remain
// readable.
func TestTrouble(t *testing.T) {
	h := machine(t, "intel-2s")
	s := open(t, h, energy.Config{})
	const zone = "/sys/class/powercap/intel-rapl:1/energy_uj"
	p := h.Path("/sys/devices/virtual/powercap/intel-rapl/intel-rapl:1/energy_uj")
	expect := func(when, want string) {
		t.Helper()
		got := show(t, s)
		if len(got) != 6 || got[0] != "rapl/package-0 1000000" || got[4] != "rapl/psys 7000000" {
			t.Fatalf("%s: %q, want six meters, the others unchanged", when, got)
		}
		if got[2] != "rapl/package-1 "+want {
			t.Errorf("%s: %q, want %q", when, got[2], want)
		}
	}
	expect("at first", "2000000")
	put(t, p, "not a number\n")
	expect("garbage", "0 "+zone+": not a number: invalid")
	put(t, p, "")
	expect("empty", "0 "+zone+": not a number: invalid")
	put(t, p, "18446744073709551615\n")
	expect("above 2^63", "0 "+zone+": not a number: invalid")
	put(t, p, "2000001\n")
	expect("repaired", "2000001")
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	expect("gone", "0 "+zone+": no such device")
	put(t, p, "7\n")
	clock(t, h, 14)
	expect("recreated, too soon", "0 "+zone+": no such device")
	clock(t, h, 15)
	expect("recreated", "7")
}

// A configured directory must exist.
func TestNoDirectory(t *testing.T) {
	cfg := energy.Config{}
	cfg.Powercap = filepath.Join(t.TempDir(), "none")
	if _, err := energy.Open(machine(t, "none"), cfg); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Open = %v, want not found", err)
	}
	cfg = energy.Config{}
	cfg.Sample = time.Hour
	if _, err := energy.Open(machine(t, "none"), cfg); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Open = %v, want invalid", err)
	}
}

// TestDirectory reads another tree instead of the machine's.
func TestDirectory(t *testing.T) {
	h := machine(t, "intel-2s")
	dir := t.TempDir()
	put(t, filepath.Join(dir, "intel-rapl:0", "name"), "package-0\n")
	put(t, filepath.Join(dir, "intel-rapl:0", "energy_uj"), "00000000000000000042\n")
	cfg := energy.Config{}
	cfg.Powercap, cfg.Every = dir, 20*time.Millisecond
	s := open(t, h, cfg)
	if diff := cmp.Diff([]string{"rapl/package-0 42"}, show(t, s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m := s.Meters()[0]; m.Wrap != 0 || m.Step != 1 || m.Every != 20e6 {
		t.Errorf("without a range: %+v, want no wrap, updated every 20 ms", m)
	}
}

// TestNoAllocation reads a tree on this machine like the kernel's.
func TestNoAllocation(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		put(t, filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", i), "name"), fmt.Sprintf("package-%d\n", i))
	}
	put(t, filepath.Join(dir, "intel-rapl:0", "energy_uj"), "1234567\n")
	// A directory opens and cannot be read, like a failing zone.
	if err := os.Mkdir(filepath.Join(dir, "intel-rapl:1", "energy_uj"), 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	cfg := energy.Config{}
	cfg.Powercap = dir
	s := open(t, h, cfg)
	rs := make([]power.Reading, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		if rs, err = s.Read(rs[:0]); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a Read allocates %v times", n)
	}
	if want := dir + "/intel-rapl:1/energy_uj: is a directory"; rs[0].Value != 1234567 || rs[1].Err != want {
		t.Errorf("Read() = %+v, want 1234567 and %q", rs, want)
	}
	if rs[1].At < rs[0].At || rs[0].At == 0 {
		t.Errorf("read at %d and %d, want increasing times", rs[0].At, rs[1].At)
	}
}

// TestDenied opens a zone for root only as another user.
func TestDenied(t *testing.T) {
	h := machine(t, "intel-2s")
	p := h.Path("/sys/devices/virtual/powercap/intel-rapl/intel-rapl:1/energy_uj")
	if err := errors.Join(os.Chmod(h.Path("/"), 0o755), os.Chmod(p, 0)); err != nil {
		t.Fatal(err)
	}
	var s *energy.Source
	unprivileged(t, func() { s = open(t, h, energy.Config{}) })
	errs := s.OpenErrors()
	if len(errs) != 1 || !errors.Is(errs[0], fault.ErrDenied) || !strings.HasPrefix(errs[0].Error(), "rapl/package-1: /sys/class/powercap/intel-rapl:1/energy_uj: permission denied") {
		t.Fatalf("OpenErrors() = %v, want one zone, denied", errs)
	}
	if hint := fault.Hint(errs[0]); !strings.Contains(hint, "CAP_DAC_READ_SEARCH") {
		t.Errorf("hint %q does not name the capability", hint)
	}
	if got := show(t, s); len(got) != 6 || !strings.Contains(got[2], "permission denied") || got[3] != "rapl/package-1/dram 100000" {
		t.Errorf("Read() = %q, want the error of one zone and the values of the others", got)
	}
	if err := os.Chmod(p, 0o400); err != nil {
		t.Fatal(err)
	}
	clock(t, h, 15)
	if got := show(t, s); got[2] != "rapl/package-1 2000000" {
		t.Errorf("with the capability: %q, want a value", got[2])
	}
}

// TestThisMachine opens the meters of this machine, if any.
func TestThisMachine(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, h, energy.Config{})
	if got := show(t, s); len(got) != len(s.Meters()) {
		t.Errorf("Read() = %q, want a reading of each of %d meters", got, len(s.Meters()))
	}
	t.Log(show(t, s), s.OpenErrors())
}

// Container runtimes hide the files of the listed zones.
func TestHidden(t *testing.T) {
	h := machine(t, "intel-2s")
	if err := os.RemoveAll(h.Path("/sys/devices/virtual/powercap")); err != nil {
		t.Fatal(err)
	}
	s := open(t, h, energy.Config{})
	if got := show(t, s); len(got) != 1 {
		t.Errorf("Read() = %q, want only the board's sensor", got)
	}
	errs := s.OpenErrors()
	if len(errs) != 5 || !errors.Is(errs[0], fault.ErrNotFound) || !strings.Contains(fault.Hint(errs[0]), "container") {
		t.Errorf("OpenErrors() = %v, want five zones with the likely cause", errs)
	}
}

// unprivileged runs f without root's file capabilities.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Capabilities are per thread. This one ends with its goroutine because it stays
		// locked to it.
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}
