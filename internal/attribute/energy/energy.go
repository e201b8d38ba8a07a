// Package energy turns what a machine's meters show into energy by domain, and
// divides that among workloads.
//
// [Meters] takes the readings of each tick: it unwraps and integrates them,
// judges them, fills in from what it learned where a meter fails, and nests
// them, so that all energy is in exactly one domain. Each domain's [DomainEnergy] is
// idle or active; [DomainEnergy.Split] gives the active part to workloads by what
// they used, and a [power.Policy] divides the idle part when it is read.
//
// All that is booked is in integers and exact: parts sum to what the meters
// showed. Estimates (what the idle machine draws, how power follows load, how
// far a figure may be off) are computed in floating point and rounded once.
package energy

import (
	"math"
	"math/bits"

	"mete.dev/mete/internal/model/power"
)

// second is a second in ns.
const second = 1_000_000_000

// Divide gives out total in proportion to weights: out[i] is total x weights[i]
// / sum, rounded so that the parts sum to total exactly and each is less than
// one off. It reports whether it gave anything: where all weights are zero, out
// is all zero and total is the caller's to place. Neither total nor a weight is
// negative; out is as long as weights.
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

// sumWeights sums weights, each shifted right by as many bits as the sum needs to
// stay below 2^64.
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

// MulDiv is amount x part / whole, rounded down; the largest int64 where that is
// more, and 0 where whole is 0. None is negative.
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

// energyOver is the energy in uJ of a power in uW that lasts for ns.
func energyOver(power, ns int64) int64 { return MulDiv(max(0, power), max(0, ns), second) }

// meanPower is the power in uW that energy in uJ needs, given out over ns.
func meanPower(energy, ns int64) int64 { return MulDiv(energy, second, max(1, ns)) }

// AddSaturated adds two amounts that are not negative, up to the largest int64.
func AddSaturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// fraction is ppm as a number from 0 to 1.
func fraction(ppm int64) float64 { return float64(min(max(0, ppm), power.PPM)) / power.PPM }

// roundToInt is the integer next to v, which is not negative; the largest int64
// where v is more.
func roundToInt(v float64) int64 {
	switch {
	case v >= math.MaxInt64:
		return math.MaxInt64
	case v > 0:
		return int64(math.Round(v))
	}
	return 0 // what is no number too
}

// rootSumSquare is what several errors make that have nothing to do with each other:
// all of them at their worst at once is not to be expected.
func rootSumSquare(errors ...int64) int64 {
	sum := 0.0
	for _, e := range errors {
		sum += float64(e) * float64(e)
	}
	return roundToInt(math.Ceil(math.Sqrt(sum)))
}
