package metric_test

import (
	"testing"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
)

// TestNames pins the names: dashboards depend on them.
func TestNames(t *testing.T) {
	t.Parallel()
	names := map[usage.Resource]string{
		usage.CPU:           "mete_workload_cpu_seconds_total",
		usage.CPUThrottled:  "mete_workload_cpu_throttled_seconds_total",
		usage.Memory:        "mete_workload_memory_byte_seconds_total",
		usage.MemoryPeak:    "mete_workload_memory_peak_bytes",
		usage.DiskRead:      "mete_workload_disk_read_bytes_total",
		usage.DiskReads:     "mete_workload_disk_reads_total",
		usage.Processes:     "mete_workload_processes_total",
		usage.PIDs:          "mete_workload_pids_total",
		usage.PIDsPeak:      "mete_workload_pids_peak",
		usage.CPUPeak:       "mete_workload_cpu_peak_cores",
		usage.CPUPeriods:    "mete_workload_cpu_periods_total",
		usage.EnergyPackage: "mete_workload_energy_joules_total",
		usage.EnergyRest:    "mete_workload_energy_joules_total",
		usage.EnergyError:   "mete_workload_energy_error_joules_total",
		usage.NetworkRxBox:  "mete_workload_network_class_rx_bytes_total",
		usage.NetworkTxBox:  "mete_workload_network_class_tx_bytes_total",
	}
	for r, want := range names {
		if got := metric.FamilyOf(r).Name; got != want {
			t.Errorf("%s is %s, want %s", r, got, want)
		}
	}
	seen := map[[3]string]usage.Resource{}
	for _, f := range metric.Families() {
		k := [3]string{f.Name, f.Label, f.LabelValue}
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s are both %v", other, f.Resource, k)
		}
		seen[k] = f.Resource
	}
	for r, want := range map[usage.Resource][2]string{usage.EnergyDRAM: {"domain", "dram"}, usage.NetworkTxZone: {"class", "zone"}, usage.CPU: {}} {
		if f := metric.FamilyOf(r); [2]string{f.Label, f.LabelValue} != want {
			t.Errorf("%s has label %s=%q, want %q", r, f.Label, f.LabelValue, want)
		}
		f := metric.FamilyOf(r)
		if got, ok := metric.FindResource(f.Name, func(name string) string {
			if name == f.Label {
				return f.LabelValue
			}
			return ""
		}); got != r || !ok {
			t.Errorf("%+v is %v, %v, want %s", f, got, ok, r)
		}
	}
	if got, ok := metric.FindResource("mete_workload_energy_joules_total", func(string) string { return "none" }); ok {
		t.Errorf("an unknown domain is %s", got)
	}
	// Those apart are there only where traffic has a class, and for containers and pods.
	if most := 36 + usage.Apart.Len(); len(seen) > most {
		t.Errorf("%d series for each workload, more than %d", len(seen), most)
	}
}

// TestValue checks that a value is the amount in base units, exactly up to 53 bits.
func TestValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r      usage.Resource
		amount int64
		want   float64
	}{
		{usage.CPU, 1_500_000_000, 1.5},
		{usage.CPU, 1, 1e-9},
		{usage.EnergyDRAM, 2_500_000, 2.5},
		{usage.Memory, 1 << 40, 1 << 40},
		{usage.Processes, 7, 7},
		{usage.CPUPeak, 1500, 1.5},
	} {
		if got := metric.FamilyOf(c.r).Value(c.amount); got != c.want {
			t.Errorf("%s of %d is %v, want %v", c.r, c.amount, got, c.want)
		}
	}
}
