// Package energy turns meter readings of a machine into energy by domain, and divides that among
// workloads.
//
// [Meters] takes the readings of each tick: it unwraps and integrates them, validates them,
// substitutes a learned model for a failed meter, and nests them, so that all energy is in exactly
// one domain. Each domain's [DomainEnergy] is idle or active; [DomainEnergy.Split] gives the active
// part to workloads by what they used, and a [power.Policy] divides the idle part when it is read.
//
// All bookings are exact integers: parts sum to what the meters showed. Estimates (idle power, the
// relation of power to load, errors) are computed in floating point and rounded once.
package energy

import (
	"math"
	"math/bits"

	"mete.dev/mete/internal/model/power"
)

// second is a second in ns.
const second = 1_000_000_000

const minute = 60 * second

// longestAbsence is how long the model of a meter that is not configured substitutes for it, in ns.
const longestAbsence = 24 * 60 * minute

// Divide divides total in proportion to weights: out[i] is total x weights[i] / sum, rounded so
// that the parts sum to total exactly and each is off by less than one. It returns false if all
// weights are zero; then out is all zero. total and weights are not negative; out is as long as
// weights.
func Divide(total int64, weights, out []int64) bool {
	sum, shift := sumWeights(weights)
	if sum == 0 {
		clear(out)
		return false
	}
	var reached uint64 // of weight
	given := int64(0)
	for i, w := range weights {
		reached += uint64(w) >> shift
		hi, lo := bits.Mul64(uint64(total), reached)
		up, _ := bits.Div64(hi, lo, sum) // hi < sum, as reached <= sum and total < 2^64
		out[i] = int64(up) - given
		given = int64(up)
	}
	return true
}

// sumWeights sums weights, each shifted right by as many bits as needed to keep the sum below 2^64.
func sumWeights(weights []int64) (sum uint64, shift int) {
	for {
		var carry uint64
		sum = 0
		for _, w := range weights {
			var c uint64
			sum, c = bits.Add64(sum, uint64(w)>>shift, 0)
			carry |= c
		}
		if carry == 0 {
			return sum, shift
		}
		shift++
	}
}

// MulDiv returns amount x part / whole, rounded down and saturated at the largest int64; 0 if whole
// is 0. Arguments are not negative.
func MulDiv(amount, part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(amount), uint64(part))
	if hi >= uint64(whole) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(min(q, math.MaxInt64))
}

// energyOver returns the energy in uJ of a power in uW over ns.
func energyOver(power, ns int64) int64 { return MulDiv(max(0, power), max(0, ns), second) }

// meanPower returns the mean power in uW of energy in uJ over ns.
func meanPower(energy, ns int64) int64 { return MulDiv(energy, second, max(1, ns)) }

// AddSaturated adds two non-negative amounts, saturating at the largest int64.
func AddSaturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// fraction converts ppm to a number from 0 to 1.
func fraction(ppm int64) float64 { return float64(min(max(0, ppm), power.PPM)) / power.PPM }

// roundToInt rounds a non-negative v, saturating at the largest int64.
func roundToInt(v float64) int64 {
	switch {
	case v >= math.MaxInt64:
		return math.MaxInt64
	case v > 0:
		return int64(math.Round(v))
	}
	return 0 // including NaN
}

// rootSumSquare combines independent errors, which are not expected to be at their worst together.
func rootSumSquare(errors ...int64) int64 {
	sum := 0.0
	for _, e := range errors {
		sum += float64(e) * float64(e)
	}
	return roundToInt(math.Ceil(math.Sqrt(sum)))
}
