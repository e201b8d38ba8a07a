package metric_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
	}
	for r, want := range names {
		if got := metric.FamilyOf(r).Name; got != want {
			t.Errorf("%s is %s, want %s", r, got, want)
		}
	}
	seen := map[[2]string]usage.Resource{}
	for _, f := range metric.Families() {
		k := [2]string{f.Name, f.Domain}
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s are both %v", other, f.Resource, k)
		}
		seen[k] = f.Resource
	}
	if diff := cmp.Diff("dram", metric.FamilyOf(usage.EnergyDRAM).Domain); diff != "" {
		t.Error(diff)
	}
	if len(seen) > 36 {
		t.Errorf("%d series for each workload, more than 36", len(seen))
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
