package gpu_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/nvmltest"
)

func TestMain(m *testing.M) { nvmltest.Main(m) }

func machine(t *testing.T) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open("/")
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

// open opens a reader of the stub's accelerators.
func open(t *testing.T) (*hostfs.FS, *gpu.Reader) {
	t.Helper()
	t.Setenv("METE_TEST_NVML", "1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := machine(t)
	r := gpu.Open(h, self)
	t.Cleanup(func() { // on a busy machine the program may take more than a second to exit
		testkit.Eventually(t, "mete-nvml exits", func() bool { return r.Close() == nil })
	})
	return h, r
}

func read(t *testing.T, h *hostfs.FS, r *gpu.Reader) []power.Reading {
	t.Helper()
	now, err := h.Boottime()
	if err != nil {
		t.Fatal(err)
	}
	return r.Read(nil, 7, now)
}

// until reads until the readings satisfy ok: a tick waits for an answer only briefly, and a
// later tick uses a late one.
func until(t *testing.T, h *hostfs.FS, r *gpu.Reader, what string, ok func(rs []power.Reading) bool) []power.Reading {
	t.Helper()
	var rs []power.Reading
	testkit.Eventually(t, what, func() bool {
		rs = read(t, h, r)
		return ok(rs)
	})
	return rs
}

// answered reports whether all accelerators have a value. On a busy machine they may have none because
// the latest answer is too old, also after readings with values.
func answered(rs []power.Reading) bool {
	return !slices.ContainsFunc(rs, func(r power.Reading) bool { return r.Err != "" })
}

// The stub's accelerators give two meters, with readings in uJ and uW.
func TestReader(t *testing.T) {
	nvmltest.Stub(t)
	begin := boottime(t)
	h, r := open(t)
	want := []power.Meter{
		{Name: "gpu/GPU-00000001-1111-2222-3333-444455556666", Level: power.Part, Domain: power.GPU, Kind: power.Energy, From: power.NVML, Step: 1000, Every: 100e6, ErrorPPM: 50_000},
		{Name: "gpu/GPU-00000002-1111-2222-3333-444455556666", Level: power.Part, Domain: power.GPU, Kind: power.Power, From: power.NVML, Step: 1000, Every: 1e9, ErrorPPM: 50_000},
	}
	if diff := cmp.Diff(want, r.Meters()); diff != "" {
		t.Fatalf("meters (-want +got):\n%s", diff)
	}
	if errs := r.OpenErrors(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "GPU-00000003") {
		t.Errorf("OpenErrors() = %v, want the third device", errs)
	}
	a := until(t, h, r, "an answer", answered)
	b := until(t, h, r, "a later answer with more energy", func(rs []power.Reading) bool { return answered(rs) && rs[0].Value > a[0].Value })
	end := boottime(t)
	for i, rs := range [][]power.Reading{a, b} {
		if len(rs) != 2 || rs[0].Meter != 7 || rs[1].Meter != 8 || rs[1].Value != 40_000_000 {
			t.Fatalf("reading %d: %+v, want energy, and 40 W", i, rs)
		}
	}
	// The stub's counter runs at 100 W since boot, in steps of 1 ms.
	low, high := (begin-1e6)/1e9*100e6, end/1e9*100e6
	for _, r := range []power.Reading{a[0], b[0]} {
		if v := float64(r.Value); v < low || v > high || float64(r.At) < begin || float64(r.At) > end {
			t.Errorf("%d uJ at %d, want %.0f to %.0f between %.0f and %.0f", r.Value, r.At, low, high, begin, end)
		}
	}
	if b[0].At <= a[0].At {
		t.Errorf("the later reading is at %d, the first at %d", b[0].At, a[0].At)
	}
}

// boottime returns the time in ns since boot.
func boottime(t *testing.T) float64 {
	t.Helper()
	now, err := machine(t).Boottime()
	if err != nil {
		t.Fatal(err)
	}
	return float64(now)
}

// A lost device has an error and no value until it is back.
func TestLost(t *testing.T) {
	nvmltest.Stub(t)
	lost := filepath.Join(t.TempDir(), "lost")
	t.Setenv("STUB_NVML_LOST", lost)
	h, r := open(t)
	until(t, h, r, "an answer", answered)
	if err := os.WriteFile(lost, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	isLost := func(rs []power.Reading) bool { return strings.Contains(rs[0].Err, "GPU is lost") && rs[1].Err == "" }
	if rs := until(t, h, r, "one device is lost", isLost); rs[0].Value != 0 {
		t.Errorf("with a lost device: %+v", rs)
	}
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	until(t, h, r, "the device is back", func(rs []power.Reading) bool { return rs[0].Err == "" && rs[0].Value != 0 })
}

// A slow driver does not delay ticks, and a later tick uses its late answer.
func TestSlow(t *testing.T) {
	nvmltest.Stub(t)
	hold := filepath.Join(t.TempDir(), "hold")
	t.Setenv("STUB_NVML_HOLD", hold)
	h, r := open(t)
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if rs := read(t, h, r); slices.ContainsFunc(rs, func(r power.Reading) bool { return r.Err == "" }) {
			t.Errorf("reading %d has a value without an answer: %+v", i, rs)
		}
	}
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	until(t, h, r, "an answer", func(rs []power.Reading) bool { return rs[0].Err == "" && rs[0].Value != 0 })
}

// One tick waits briefly for a slow driver, the next ones do not.
func TestSlowWaits(t *testing.T) {
	testkit.Stage(t, "timing", "measures how long a reading takes")
	nvmltest.Stub(t)
	t.Setenv("STUB_NVML", "slow")
	h, r := open(t)
	took := func() time.Duration {
		begin := time.Now()
		read(t, h, r)
		return time.Since(begin)
	}
	if d := took(); d > 250*time.Millisecond {
		t.Errorf("the first reading took %v", d)
	}
	least := took()
	for range 9 { // this machine may be busy for a moment
		least = min(least, took())
	}
	if least > 15*time.Millisecond {
		t.Errorf("the second reading took %v, want no wait", least)
	}
}

// If the library ends the process, the readings have its error.
func TestCrash(t *testing.T) {
	nvmltest.Stub(t)
	t.Setenv("STUB_NVML", "die")
	h, r := open(t)
	until(t, h, r, "the cause of the crash", func(rs []power.Reading) bool { return strings.Contains(rs[0].Err, "the stub dies") })
}

// Without accelerators no process runs, and a problem has a hint.
func TestNoAccelerators(t *testing.T) {
	captured := hosttest.Open(t, "hybrid")
	for _, c := range []struct {
		h    *hostfs.FS
		mode string
		want string
	}{
		{machine(t), gpu.Off, ""}, {machine(t), "", ""}, {captured, gpu.On, ""},
		{machine(t), "/nosuch/mete-nvml", "/nosuch/mete-nvml"},
		{machine(t), "/bin/false", "mete-nvml"},
	} {
		r := gpu.Open(c.h, c.mode)
		errs := r.OpenErrors()
		if (len(errs) > 0) != (c.want != "") || len(errs) > 0 && !strings.Contains(errs[0].Error(), c.want) {
			t.Errorf("%q: OpenErrors() = %v, want %q", c.mode, errs, c.want)
		}
		if c.mode == "/nosuch/mete-nvml" && fault.Hint(errs[0]) == "" {
			t.Error("no hint at what to install")
		}
		if len(r.Meters()) > 0 || len(r.Read(nil, 0, 1)) > 0 {
			t.Errorf("%q: meters", c.mode)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	nvmltest.Stub(t)
	t.Setenv("STUB_NVML", "noinit")
	_, r := open(t)
	if errs := r.OpenErrors(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "Driver Not Loaded") || fault.Hint(errs[0]) == "" {
		t.Errorf("without a driver: %v", errs)
	}
}

// The helper gets the environment of its caller without tokens.
func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	program, seen := filepath.Join(dir, "mete-nvml"), filepath.Join(dir, "seen")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nenv >'"+seen+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("METE_TOKEN", "mete_secret")
	t.Setenv("METE_UPSTREAM_TOKEN", "mete_secret")
	t.Setenv("LD_LIBRARY_PATH", "/kept")
	if err := gpu.Open(machine(t), program).Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(seen)
	if err != nil || !strings.Contains(string(b), "LD_LIBRARY_PATH=/kept") || strings.Contains(string(b), "TOKEN") {
		t.Errorf("environment %s, %v", b, err)
	}
}

// A program of another user is not run.
func TestForeignProgram(t *testing.T) {
	hosttest.Need(t, "root")
	dir := t.TempDir()
	program, ran := filepath.Join(dir, "mete-nvml"), filepath.Join(dir, "ran")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch '"+ran+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(program, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	r := gpu.Open(machine(t), program)
	if errs := r.OpenErrors(); len(errs) != 1 || !errors.Is(errs[0], fault.ErrDenied) || !strings.Contains(errs[0].Error(), program) || fault.Hint(errs[0]) == "" {
		t.Errorf("OpenErrors() = %v", errs)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program ran")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
