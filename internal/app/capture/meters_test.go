package capture_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/hosttest"
)

// metered returns a machine with control groups and the meters of a machine of collect/energy.
func metered(t *testing.T, meters string) *hostfs.FS {
	t.Helper()
	var all []byte
	for _, file := range []string{"../../testkit/hosttest/testdata/v2-systemd-containerd.txtar", "../../collect/energy/testdata/" + meters + ".txtar"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return hosttest.Unpack(t, all)
}

// readMeters returns a machine's meters and their readings.
func readMeters(t *testing.T, h *hostfs.FS) ([]power.Meter, []power.Reading) {
	t.Helper()
	s, err := energy.Open(h, energy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	rs, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Meters(), rs
}

// TestMeters checks that a capture has the same meters and readings as the machine.
func TestMeters(t *testing.T) {
	for name, want := range map[string]int{"intel-1s": 3, "intel-2s": 6, "amd": 1, "amd-hwmon": 2, "acpi": 1, "grace": 2, "none": 0} {
		t.Run(name, func(t *testing.T) {
			h := metered(t, name)
			text, _ := take(t, h, capture.Default())
			meters, readings := readMeters(t, h)
			again, replayed := readMeters(t, hosttest.Unpack(t, []byte(text)))
			if len(meters) != want {
				t.Fatalf("%d meters, want %d", len(meters), want)
			}
			if diff := cmp.Diff(meters, again); diff != "" {
				t.Errorf("meters of the capture (-machine +capture):\n%s", diff)
			}
			if diff := cmp.Diff(readings, replayed); diff != "" {
				t.Errorf("readings of the capture (-machine +capture):\n%s", diff)
			}
		})
	}
}

// TestSensorsAreRedacted checks that a capture omits vendor texts and serial numbers of sensors,
// but keeps the sensors and their values.
func TestSensorsAreRedacted(t *testing.T) {
	h := metered(t, "acpi")
	put := func(p, text string) {
		t.Helper()
		if err := os.WriteFile(h.Path(p), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dir := "/sys/class/hwmon/hwmon0/device"
	if es, err := h.ReadDir(dir); err != nil || len(es) == 0 {
		t.Fatalf("the machine has no such device: %v", err)
	}
	put(dir+"/power1_oem_info", "Property of Acmecorp\n")
	put(dir+"/power1_serial_number", "5EC2E7\n")
	put(dir+"/power1_model_number", "acmemodel\n")
	put(dir+"/power1_label", "alice\n")
	text, _ := take(t, h, capture.Default())
	for _, secret := range []string{"Acmecorp", "5EC2E7", "acmemodel", "alice"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%q survives: %q", secret, text[max(0, i-60):min(len(text), i+60)])
		}
	}
	meters, readings := readMeters(t, hosttest.Unpack(t, []byte(text)))
	i := slices.IndexFunc(meters, func(m power.Meter) bool { return m.Name == "hwmon/power_meter/ACPI000D:00" })
	if i < 0 || readings[i].Value != 212_000_000 {
		t.Errorf("meters %+v show %+v, want ACPI000D:00 at 212 W", meters, readings)
	}
}
