package run_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

var energies = []report.Key{report.Energy, report.EnergyError, report.EnergyIdle, report.EnergyIdleError}

// TestEnergyModelled checks that without a meter energy is modelled, with an error bound and the
// name of the curve, however short the job is.
func TestEnergyModelled(t *testing.T) {
	m := program(t)
	none := t.TempDir() // a machine without meters
	for _, reader := range []string{"auto", "files"} {
		rep, _ := m.job("--powercap", none, "--reader", reader, "--", "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
		for _, k := range energies {
			if f := rep.Figures[k]; f.Quality != usage.Modelled || f.Amount <= 0 {
				t.Errorf("%s: %s = %+v, want more than nothing, modelled", reader, k, f)
			}
		}
		part := get(t, rep, report.EnergyError) / get(t, rep, report.Energy)
		if part < 0.05 || part > 1 {
			t.Errorf("%s: relative error %.2f", reader, part)
		}
		if !strings.Contains(rep.EnergySource, "SPECpower_ssj2008") {
			t.Errorf("%s: source %q, want the curve's", reader, rep.EnergySource)
		}
		// The power is the curve's for the time and CPUs of the job: for a thread of a server, a
		// few watts.
		if w, q := rep.Power(); w <= 0 || w > 20*float64(rep.CPUs) || q != usage.Modelled {
			t.Errorf("%s: %v W, %v", reader, w, q)
		}
		text := string(rep.Text())
		for _, want := range []string{"\n  energy  ", " ±", " on average ", "modelled\n", "\n  energy is modelled: SPECpower_ssj2008"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the report does not say %q:\n%s", reader, want, text)
			}
		}
	}
}

// TestEnergyMetered checks that with a meter a job gets the part of its reading for its CPU time.
func TestEnergyMetered(t *testing.T) {
	dir := t.TempDir()
	cfg := powersim.Default()
	cfg.Dir = filepath.Join(dir, "powercap")
	cfg.Zones = []powersim.Zone{{ID: "intel-rapl:0", Name: "package-0", Domain: power.Package, Model: powersim.PowerModel{Idle: 4e6, Core: 10e6, Exponent: 1}}}
	whole := "/sys/fs/cgroup"
	if _, err := filepath.EvalSymlinks(whole + "/cpuacct"); err == nil {
		whole += "/cpuacct"
	}
	cfg.Whole = whole
	hosttest.Need(t, "root")
	sim, err := powersim.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Stop(); err != nil {
			t.Error(err)
		}
	})
	m := program(t)
	rep, _ := m.job("--powercap", cfg.Dir, "--", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	if f := rep.Figures[report.Energy]; f.Quality != usage.Apportioned || rep.EnergySource != "rapl/package-0" {
		t.Fatalf("energy %+v from %q, notes %q, want it apportioned, from rapl/package-0", f, rep.EnergySource, rep.Notes)
	}
	t.Run("figure", func(t *testing.T) {
		testkit.Stage(t, "accuracy", "compares with a simulated meter in real time")
		want := get(t, rep, report.CPU) / 1e9 * 10e6
		got, off := get(t, rep, report.Energy), get(t, rep, report.EnergyError)
		t.Logf("%.0f uJ +-%.0f, by the power model %.0f", got, off, want)
		if got < want-off || got > want+off {
			t.Errorf("%.0f uJ +-%.0f, want %.0f: 10 W for each busy core", got, off, want)
		}
	})
}

// TestEnergyOfBadDirectory checks that missing meters of --powercap are named and not replaced.
func TestEnergyOfBadDirectory(t *testing.T) {
	m := program(t)
	rep, _ := m.job("--powercap", filepath.Join(t.TempDir(), "none"), "--", "true")
	for _, k := range energies {
		if v, ok := rep.Get(k); ok {
			t.Errorf("%s = %d, want it absent", k, v)
		}
	}
	if !slices.ContainsFunc(rep.Notes, func(n string) bool {
		return strings.HasPrefix(n, "energy is absent: ") && strings.HasSuffix(n, "no such file or directory")
	}) {
		t.Errorf("notes %q, want why energy is absent", rep.Notes)
	}
}

// TestEnergyDenied checks that an unreadable meter is named with the required capability, and
// replaced by the model.
func TestEnergyDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("runs as another user")
	}
	// A directory that the user can enter.
	dir, err := os.MkdirTemp("/tmp", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	zone := filepath.Join(dir, "intel-rapl:0")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(zone, 0o755), os.WriteFile(zone+"/name", []byte("package-0\n"), 0o644),
		os.WriteFile(zone+"/max_energy_range_uj", []byte("262143328850\n"), 0o644), os.WriteFile(zone+"/energy_uj", []byte("5\n"), 0o400)); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(dir+"/mete", self, 0o755), os.Mkdir(dir+"/state", 0o777), os.Chmod(dir+"/state", 0o777)); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(dir+"/mete", "run", "--powercap", dir, "-o", "json", "--", "true")
	c.Env, c.Dir = append(os.Environ(), "METE_TEST_MAIN=1", "METE_STATE="+dir+"/state"), dir
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	r := finish(t, c)
	rep, err := report.Parse([]byte(r.stderr))
	if err != nil {
		t.Fatalf("%v: %s", err, r.stderr)
	}
	if f := rep.Figures[report.Energy]; f.Quality != usage.Modelled {
		t.Errorf("energy %+v, want it modelled", f)
	}
	var said []string
	for _, n := range rep.Notes {
		if strings.HasPrefix(n, "energy meter ") {
			said = append(said, n)
		}
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "energy meter rapl/package-0: ") || !strings.Contains(said[0], "CAP_DAC_READ_SEARCH") {
		t.Errorf("notes %q, want one of the meter that is denied, with what to grant", said)
	}
}

// TestEnergyLearned checks that the agent's learned power model replaces meters that this user
// cannot read.
func TestEnergyLearned(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	p, err := sources.OpenPower(h, sources.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Meters.Meters()) > 0 {
		t.Skip("this machine has meters")
	}
	defer func() { _ = p.Meters.Close() }()
	seen := energy.New(energy.Config{Meters: []power.Meter{{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy,
		From: power.Powercap, Step: 1, Every: 1e6}}})
	value, at := int64(0), int64(1e9)
	for i := range int64(40) {
		load := i % 8 * 100_000
		span := energy.Interval{At: at, Elapsed: 1e9, Load: load, CPUs: p.Threads}
		if i == 0 {
			span.Elapsed = 0
		}
		value += 5e6 + load*20 // 5 W, and 20 W when all is busy
		seen.Tick(span, nil, []power.Reading{{Meter: 0, At: at, Value: value}})
		at += 1e9
	}
	m := program(t)
	if err := os.MkdirAll(filepath.Join(m.dir, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "agent", "power.json"), seen.EncodeModels(p.Processor), 0o600); err != nil {
		t.Fatal(err)
	}
	before := steal(t, h)
	rep, _ := m.job("--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if f := rep.Figures[report.Energy]; f.Quality != usage.Modelled || rep.EnergySource != "what was learned of rapl/package-0" || f.Amount <= 0 {
		t.Fatalf("energy %+v by %q, want it modelled by what was learned", f, rep.EnergySource)
	}
	t.Run("figure", func(t *testing.T) {
		testkit.Stage(t, "accuracy", "compares with the load of the whole machine in real time")
		want := get(t, rep, report.CPU) / 1e9 * 20e6 / float64(rep.CPUs)
		// Load is relative to the available CPU time: with stolen time it is higher, by at most
		// that share.
		there := float64(rep.CPUs) * get(t, rep, report.Wall)
		most := want * there / (there - min(steal(t, h)-before, there/2))
		got, off := get(t, rep, report.Energy), get(t, rep, report.EnergyError)
		if got < want-off || got > most+off || off > got/2 {
			t.Errorf("%.0f uJ +-%.0f, want %.0f to %.0f by what was learned", got, off, want, most)
		}
	})
}

// steal returns the CPU time that the host took from this machine since boot, in ns.
func steal(t *testing.T, h *hostfs.FS) float64 {
	t.Helper()
	b, err := h.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return float64(s.Steal)
}
