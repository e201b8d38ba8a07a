package energy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
)

// answers stands in for mete-nvml: one device, always at 5 J.
const answers = `#!/bin/sh
echo $$ >"$0.pid"
printf 'meters\tenergy GPU-1\t!GPU-2 shows nothing\n'
while read -r line; do echo 5000; done
`

// Accelerators are the last meters and are read with the others.
func TestGPUs(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "mete-nvml")
	if err := os.WriteFile(program, []byte(answers), 0o700); err != nil {
		t.Fatal(err)
	}
	cap := filepath.Join(dir, "powercap", "intel-rapl:0")
	if err := os.MkdirAll(cap, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"name": "package-0", "energy_uj": "1000"} {
		if err := os.WriteFile(filepath.Join(cap, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := open(t, h, energy.Config{Powercap: filepath.Dir(cap), NVML: program})
	if ms := s.Meters(); len(ms) != 2 || ms[1].Name != "gpu/GPU-1" || ms[1].Domain != power.GPU || ms[1].From != power.NVML {
		t.Fatalf("meters %+v", ms)
	}
	var got string
	// A tick waits for an answer only briefly; a later tick uses a late answer.
	testkit.Eventually(t, "an answer", func() bool {
		got = strings.Join(show(t, s), ", ")
		return !strings.Contains(got, "not read yet") && !strings.Contains(got, "no answer")
	})
	if got != "rapl/package-0 1000, gpu/GPU-1 5000000" {
		t.Errorf("readings %s", got)
	}
	if errs := s.OpenErrors(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "GPU-2") {
		t.Errorf("OpenErrors() = %v, want the other device", errs)
	}
	pid, err := os.ReadFile(program + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the program may take longer to exit than Close waits.
	if err := s.Close(); err != nil && !errors.Is(err, fault.ErrUnavailable) {
		t.Error(err)
	}
	testkit.Eventually(t, "the program exits after Close", func() bool {
		_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(pid))))
		return errors.Is(err, os.ErrNotExist)
	})
	if err := (energy.Config{NVML: "often"}).Validate(); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
		t.Errorf("an invalid mode: %v", err)
	}
}
