package series_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/series"
)

// Names are part of other people's dashboards: they stay.
func TestNames(t *testing.T) {
	t.Parallel()
	names := map[meter.Resource]string{
		meter.CPU:           "mete_workload_cpu_seconds_total",
		meter.CPUThrottled:  "mete_workload_cpu_throttled_seconds_total",
		meter.Memory:        "mete_workload_memory_byte_seconds_total",
		meter.MemoryPeak:    "mete_workload_memory_peak_bytes",
		meter.DiskRead:      "mete_workload_disk_read_bytes_total",
		meter.DiskReads:     "mete_workload_disk_reads_total",
		meter.Processes:     "mete_workload_processes_total",
		meter.PIDs:          "mete_workload_pids_total",
		meter.PIDsPeak:      "mete_workload_pids_peak",
		meter.EnergyPackage: "mete_workload_energy_joules_total",
		meter.EnergyRest:    "mete_workload_energy_joules_total",
		meter.EnergyError:   "mete_workload_energy_error_joules_total",
	}
	for r, want := range names {
		if got := series.Of(r).Name; got != want {
			t.Errorf("%s is %s, want %s", r, got, want)
		}
	}
	seen := map[[2]string]meter.Resource{}
	for _, f := range series.All() {
		k := [2]string{f.Name, f.Domain}
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s are both %v", other, f.Resource, k)
		}
		seen[k] = f.Resource
	}
	if diff := cmp.Diff("dram", series.Of(meter.EnergyDRAM).Domain); diff != "" {
		t.Error(diff)
	}
	if len(seen) > 30 {
		t.Errorf("%d series for each workload, more than 30", len(seen))
	}
}

// A value is the amount in base units, exactly where 53 bits hold it.
func TestValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r      meter.Resource
		amount int64
		want   float64
	}{
		{meter.CPU, 1_500_000_000, 1.5},
		{meter.CPU, 1, 1e-9},
		{meter.EnergyDRAM, 2_500_000, 2.5},
		{meter.Memory, 1 << 40, 1 << 40},
		{meter.Processes, 7, 7},
	} {
		if got := series.Of(c.r).Value(c.amount); got != c.want {
			t.Errorf("%s of %d is %v, want %v", c.r, c.amount, got, c.want)
		}
	}
}
