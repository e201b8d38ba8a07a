package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A divisionError describes how much the energy of a CPU second may vary within a tick.
type divisionError struct {
	elapsed int64 // ns of the tick
	cpus    int
	// nonlinearity is the deviation of the model's exponent from 1: the energy of a CPU second is
	// proportional to load^(exponent - 1).
	nonlinearity float64
	// noise is the standard deviation of a tick's power from the model, relative to its active
	// power.
	noise float64
}

// noiseSigmas is the number of standard deviations of noise allowed per tick. A window has at least
// two ticks, whose errors are added although their noise is independent. So 1.65 per tick, which
// covers 9 of 10 single ticks, is 2.3 for two, which covers 98 of 100.
const noiseSigmas = 1.65

// loadCorrelation is how much more the loads met by workloads vary than if workloads ran
// independently: those that wait for the same event run at the same time.
const loadCorrelation = 1.1

// residentError is the error of a workload's part where memory energy is divided by bytes held:
// held memory may be unused.
const residentError = .5

// relativePPM returns the error in ppm of one workload's part, in addition to the error of the
// total.
func (d *divisionError) relativePPM(by Rule, weights []int64) int64 {
	switch by {
	case ByTraffic:
		return roundToInt(noiseSigmas * d.noise * power.PPM)
	case ByResident:
		return roundToInt(max(residentError, noiseSigmas*d.noise) * power.PPM)
	}
	return roundToInt(math.Hypot(loadCorrelation*d.nonlinearity*d.loadSpread(weights), noiseSigmas*d.noise) * power.PPM)
}

// loadSpread returns how much the load met by a running workload deviates from the tick's mean, as
// a natural logarithm.
//
// Only the CPU time of each workload is known. One that used less than half a CPU may have done so
// in bursts on one whole CPU, one that used more in bursts of double that. If bursts are
// independent, their variances add up to that of the load.
func (d *divisionError) loadSpread(weights []int64) float64 {
	var sum, variance float64
	for _, w := range weights {
		used := float64(w) / float64(max(1, d.elapsed)) // in CPUs
		running := min(max(1, 2*used), float64(d.cpus))
		sum += used
		variance += used * max(0, running-used)
	}
	if sum == 0 {
		return 0
	}
	// The load is at most all CPUs and, while the workload runs, at least its own.
	most := max(math.Log(max(1, float64(d.cpus)/sum)), math.Abs(math.Log(sum)))
	return min(most, math.Sqrt(variance)/sum)
}
