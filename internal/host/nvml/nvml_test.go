package nvml_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit/nvmltest"
)

func TestMain(m *testing.M) { nvmltest.Main(m) }

// serve sends the given number of requests and returns the program's lines.
func serve(t *testing.T, requests int) []string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "METE_TEST_NVML=1")
	cmd.Stdin = strings.NewReader(strings.Repeat("\n", requests))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

const refused = "!accelerator GPU-00000003-1111-2222-3333-444455556666: nvmlDeviceGetPowerUsage: Not Supported: not supported"

func TestServe(t *testing.T) {
	nvmltest.Stub(t)
	lines := serve(t, 2)
	want := "meters\tenergy GPU-00000001-1111-2222-3333-444455556666\tpower GPU-00000002-1111-2222-3333-444455556666\t" + refused
	if len(lines) != 3 || lines[0] != want {
		t.Fatalf("output\n%q, want\n%q and two readings", lines, want)
	}
	for _, l := range lines[1:] {
		f := strings.Split(l, "\t")
		if len(f) != 2 || len(f[0]) < 4 || strings.HasPrefix(f[0], "!") || f[1] != "40000" {
			t.Errorf("answer %q, want mJ and 40000 mW", l)
		}
	}
}

func TestFailures(t *testing.T) {
	if l := serve(t, 1); len(l) != 1 || l[0] != "none" {
		if strings.HasPrefix(l[0], "meters") || strings.HasPrefix(l[0], "failed") {
			t.Skip("this machine has the real library")
		}
		t.Errorf("without a library: %q", l)
	}
	nvmltest.Stub(t)
	t.Setenv("STUB_NVML", "noinit")
	if l := serve(t, 1); len(l) != 1 || l[0] != "failed\tnvmlInit: Driver Not Loaded: unavailable\tload the driver; nvidia-smi shows whether it works" {
		t.Errorf("without a driver: %q", l)
	}
	t.Setenv("STUB_NVML", "")
	lost := filepath.Join(t.TempDir(), "lost")
	t.Setenv("STUB_NVML_LOST", lost)
	if err := os.WriteFile(lost, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l := serve(t, 1); len(l) != 2 || l[1] != "!nvmlDeviceGetTotalEnergyConsumption: GPU is lost: unavailable\t40000" {
		t.Errorf("with a lost device: %q", l)
	}
}
