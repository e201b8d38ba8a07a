package powersim_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The demonstration simulates a package and its memory for all of this machine, and is
// labeled as simulated.
func TestDemo(t *testing.T) {
	hosttest.Need(t, "procfs")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(t.TempDir(), "powercap")
	cfg, err := powersim.Demo(h, dir, 4)
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err) // no CPU counters
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := powersim.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := energy.Open(h, energy.Config{Powercap: dir})
	if err != nil {
		t.Fatal(err)
	}
	if s.Simulated() != power.DemoLabel || len(s.Meters()) != 2 {
		t.Fatalf("simulated %q, meters %+v", s.Simulated(), s.Meters())
	}
	for _, m := range s.Meters() {
		if !strings.HasPrefix(m.Name, power.DemoLabel+" package-0") || m.From != power.Model {
			t.Errorf("%+v does not say that it is simulated", m)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	// Without the label file they are taken for real meters.
	if err := os.Remove(filepath.Join(dir, power.SimulatedFile)); err != nil {
		t.Fatal(err)
	}
	s, err = energy.Open(h, energy.Config{Powercap: dir})
	if err != nil {
		t.Fatal(err)
	}
	if s.Simulated() != "" || s.Meters()[0].Name != "rapl/package-0" {
		t.Errorf("simulated %q, meters %+v", s.Simulated(), s.Meters())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
