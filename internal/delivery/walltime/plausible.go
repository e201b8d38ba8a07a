package walltime

import (
	"math"
	"time"

	"mete.dev/mete/internal/model/usage"
)

const (
	// maxCPUs is more than any Linux kernel supports.
	maxCPUs = 8192
	// maxPower is more than any node draws, in uW.
	maxPower = int64(100e9)
	// readingSlack is by how much longer than its window the time may be in which its use arose: the
	// kernel cannot be read at one instant, and a job's last window is as short as its end.
	readingSlack = 10 * time.Second
)

// CheckCPU returns an error if a window has more CPU time than any machine. It wraps
// fault.ErrInvalid.
func CheckCPU(ws []usage.Window) error {
	for i := range ws {
		w := &ws[i]
		limit := cpuTime(maxCPUs, w)
		used, whole := sumOf(w, usage.CPU), w.Balance.Whole.Get(usage.CPU)
		switch {
		case w.CPUs > maxCPUs:
			return invalid(i, "has %d CPUs", w.CPUs)
		case float64(max(used, whole, sumOf(w, usage.CPUUser), sumOf(w, usage.CPUSystem))) > limit:
			return invalid(i, "has more CPU time in %v than %d CPUs: %v used of %v", w.Length(), maxCPUs, time.Duration(used), time.Duration(whole))
		}
	}
	return nil
}

// IsPlausible reports whether the machine of a window can have had this use: not much more CPU time
// than its CPUs have, and not more than 100 kW. cpus is the largest number of CPUs that its node is
// known to have had, since some may have been removed within the window. A guest may book what its
// host gave it in days in which it was suspended.
func IsPlausible(w *usage.Window, cpus int) bool {
	if cpus := max(cpus, w.CPUs); w.CPUs > 0 && float64(sumOf(w, usage.CPU)) > 2*cpuTime(cpus, w) {
		return false
	}
	for i := range w.Handovers {
		if w.Handovers[i].Workload == "" {
			return true
		}
	}
	energy := 0.0
	for _, r := range [...]usage.Resource{usage.EnergyPackage, usage.EnergyDRAM, usage.EnergyGPU, usage.EnergyRest} {
		energy += float64(sumOf(w, r))
	}
	return energy <= float64(maxPower)*(w.Length()+readingSlack).Seconds()
}

// cpuTime returns the CPU time of the given number of CPUs in a window and readingSlack, in ns.
func cpuTime(cpus int, w *usage.Window) float64 {
	return float64(cpus) * float64(w.Length()+readingSlack)
}

// sumOf returns the sum of the rows of a window; one that overflows is the largest number.
func sumOf(w *usage.Window, r usage.Resource) (sum int64) {
	for i := range w.Rows {
		if v, ok := w.Rows[i].Usage.Get(r); ok {
			sum += min(v, math.MaxInt64-sum)
		}
	}
	return sum
}
