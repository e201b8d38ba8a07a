package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A divisionError is what is known of how the energy that a CPU second costs differs
// within a tick, where it cannot be seen.
type divisionError struct {
	elapsed int64 // ns of the tick
	cpus    int
	// nonlinearity is by how much the model's exponent differs from 1: a CPU second costs
	// in proportion to load^(exponent - 1).
	nonlinearity float64
	// noise is the standard deviation of a tick's power from the model, as a part
	// of its active power.
	noise float64
}

// noiseSigmas is how many standard deviations the noise is allowed for in a tick. A window
// is of two ticks at least, whose errors are added up as if they were one; but what is
// noise in one has nothing to do with that of the next. So 1.65 in each, which single
// ticks keep to in 9 of 10 cases, are 2.3 of two of them, which they keep to in 98 of
// 100.
const noiseSigmas = 1.65

// loadCorrelation is how much more the loads that workloads meet differ than if each ran when
// it likes: what waits for the same thing runs at the same time.
const loadCorrelation = 1.1

// residentError is how far a workload's part may be off where memory's energy is
// divided by bytes held: what is held need not be used.
const residentError = .5

// relativePPM is by how much, in ppm, the energy of one workload may be more or less
// than its part, beside what all of it may be off.
func (d *divisionError) relativePPM(by Rule, weights []int64) int64 {
	switch by {
	case ByTraffic:
		return roundToInt(noiseSigmas * d.noise * power.PPM)
	case ByResident:
		return roundToInt(max(residentError, noiseSigmas*d.noise) * power.PPM)
	}
	return roundToInt(math.Hypot(loadCorrelation*d.nonlinearity*d.loadSpread(weights), noiseSigmas*d.noise) * power.PPM)
}

// loadSpread is by how much the load that a workload meets while it runs differs
// from the tick's mean, in powers of e.
//
// What is known is how much CPU time each used. One that used less than half a
// CPU may have done so in spells of one whole CPU, one that used more in spells
// of double that. If they do so independently of each other, the variances of
// what they have running add up to that of the load.
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
	// The load is no more than all CPUs and, while it runs, no less than its own.
	most := max(math.Log(max(1, float64(d.cpus)/sum)), math.Abs(math.Log(sum)))
	return min(most, math.Sqrt(variance)/sum)
}
