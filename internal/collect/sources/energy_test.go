package sources_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A captured machine draws the power of a given curve, scaled to its CPUs that are online, and the given
// static part of it is idle.
func TestGivenCurve(t *testing.T) {
	h := hosttest.Open(t, "v1-kubelet")
	cfg := everyTick(sources.Files)
	cfg.Curve = power.Curve{Domain: power.Package, Threads: 1000, Points: []power.Point{{Load: 0, Power: 5_000_000_000}, {Load: power.PPM, Power: 5_000_000_000}}, ErrorPPM: 100_000, Source: "given"}
	cfg.Static[power.Package] = 1_000_000
	m, err := sources.New(h, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	mustTick(t, m)
	from := m.Snapshot().At
	hosttest.Step(t, h)
	b := mustTick(t, m)
	seconds := float64(m.Snapshot().At-from) / 1e9
	cpus := m.Snapshot().Node.CPUs
	want := 5 * float64(cpus) * seconds * 1e6
	if got := float64(b.Whole.Get(usage.EnergyPackage)); got < want-2 || got > want+2 {
		t.Errorf("%g uJ, want 5 W for each of %d CPUs in %g s", got, cpus, seconds)
	}
	if got := float64(b.Idle.Get(usage.EnergyPackage)); got < 1e6*seconds-2 || got > 1e6*seconds+2 {
		t.Errorf("%g uJ idle, want 1 W in %g s", got, seconds)
	}
	// The captured machine has no /proc/cpuinfo, so at the start it has one CPU.
	if s, want := m.Accounts().Meters().Source(power.Package), fmt.Sprintf("given, scaled from 1000 to 1 threads, scaled from 1 to %d threads", cpus); s != want {
		t.Errorf("source %q, want %q", s, want)
	}
}

// Meters in a directory are read, and unreadable ones have an error.
func TestMetersOfDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"intel-rapl:0/name": "package-0\n", "intel-rapl:0/energy_uj": "1000\n", "intel-rapl:0/max_energy_range_uj": "262143328850\n",
		"intel-rapl:1/energy_uj": "1000\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := everyTick(sources.Files)
	cfg.Energy.Powercap = dir
	log := &events{Handler: slog.DiscardHandler}
	m, err := sources.New(hosttest.Open(t, "v1-kubelet"), cfg, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	mustTick(t, m)
	if err := os.WriteFile(filepath.Join(dir, "intel-rapl:0/energy_uj"), []byte("51000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := mustTick(t, m)
	if got := b.Whole.Get(usage.EnergyPackage); got != 50_000 {
		t.Errorf("booked %d uJ, want 50000", got)
	}
	// Their power models are not restored for the machine's own meters.
	cfg.PowerModels = m.PowerModels()
	again, err := sources.New(hosttest.Open(t, "v1-kubelet"), cfg, slog.New(slog.DiscardHandler))
	if err != nil || again.PowerModelsError() != nil {
		t.Fatalf("with the same meters: %v, %v", err, again.PowerModelsError())
	}
	mustClose(t, again)
	cfg.Energy.Powercap = ""
	if again, err = sources.New(hosttest.Open(t, "v1-kubelet"), cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, again)
	if err := again.PowerModelsError(); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("with the machine's own meters: %v, want a conflict", err)
	}
	refused := m.Power().Meters.OpenErrors()
	if len(m.Power().Meters.Meters()) != 1 || len(refused) != 1 || fault.Hint(refused[0]) == "" {
		t.Errorf("%d meters, OpenErrors() = %v; want one each", len(m.Power().Meters.Meters()), refused)
	}
	warnings := 0
	for _, e := range log.text {
		if len(e) > 15 && e[:15] == "an energy meter" {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("logged %d times that a meter cannot be read: %q", warnings, log.text)
	}
}
