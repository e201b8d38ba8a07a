package energy

import (
	"fmt"
	"math"
	"slices"

	"mete.dev/mete/internal/model/power"
)

// CurvePower returns the power of c at a load in ppm, in uW.
func CurvePower(c *power.Curve, load int64) int64 {
	if len(c.Points) == 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(c.Points, load, func(p power.Point, load int64) int { return int(p.Load - load) })
	switch {
	case i == 0:
		return c.Points[0].Power
	case i == len(c.Points):
		return c.Points[i-1].Power
	}
	a, b := c.Points[i-1], c.Points[i]
	if b.Power < a.Power {
		return a.Power - MulDiv(a.Power-b.Power, load-a.Load, b.Load-a.Load)
	}
	return a.Power + MulDiv(b.Power-a.Power, load-a.Load, b.Load-a.Load)
}

// certainLoad is the load in ppm from which on a curve's rise is known as well as its
// power at full load. It falls short of that the more, the less the load is. In
// the table's results of power at eleven loads, held against curves without their
// CPU, the rise from idle to a tenth of full load is off by 80 % in 5 of 100 where
// full load is by 40 %, that to two tenths by 60 %, and to four tenths by 43 %.
const certainLoad = 400_000

// riseError is by how much the power that c says beyond that of the idle machine
// may be off at a load, in ppm of it.
func riseError(c *power.Curve, load int64) int64 {
	more := max(0, c.IdleErrorPPM-c.ErrorPPM)
	return AddSaturated(c.ErrorPPM, MulDiv(more, certainLoad-min(max(0, load), certainLoad), certainLoad))
}

// ScaleCurve returns the curve of that many hardware threads out of a machine like
// the one that c describes: n of its N threads draw n/N of its power. A virtual
// machine has such a share of its host.
func ScaleCurve(c power.Curve, threads int) power.Curve {
	if threads <= 0 || c.Threads <= 0 || threads == c.Threads {
		return c
	}
	c.Points = slices.Clone(c.Points)
	for i := range c.Points {
		c.Points[i].Power = MulDiv(c.Points[i].Power, int64(threads), int64(c.Threads))
	}
	c.Source = fmt.Sprintf("%s, scaled from %d to %d threads", c.Source, c.Threads, threads)
	c.Threads = threads
	return c
}

// A Sample is a power that was measured at a load.
type Sample struct {
	Load  int64 // ppm of the CPU time that there was
	Power int64 // uW
}

// FitCurve returns the curve of a machine, or of its packages, from power that was
// measured at many loads. The second result says how well it describes them: how
// far it is off on average (root of the mean square), in ppm of the mean power.
// The curve's Threads and Source are the caller's to set, as is the class of the
// meter, which adds to its ErrorPPM.
func FitCurve(domain power.Domain, samples []Sample) (power.Curve, int64) {
	var pm PowerModel
	for _, s := range samples {
		pm.Add(fraction(s.Load), float64(s.Power))
	}
	c := pm.Curve(domain)
	var square, sum float64
	for _, s := range samples {
		d := float64(s.Power - CurvePower(&c, s.Load))
		square += d * d
		sum += float64(s.Power)
	}
	if sum == 0 {
		return c, 0
	}
	n := float64(len(samples))
	residual := roundToInt(math.Sqrt(square/n) / (sum / n) * power.PPM)
	return c, residual
}

// knots are the loads in ppm at which curves that were fitted have a point.
var knots = [...]int64{0, 2_500, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000,
	400_000, 500_000, 600_000, 700_000, 800_000, 900_000, 1_000_000}

// Curve returns what was learned as a curve that never falls. Its ErrorPPM is
// the mean of what its points may be off.
func (pm *PowerModel) Curve(domain power.Domain) power.Curve {
	c := power.Curve{Domain: domain}
	if !pm.IsTrained() {
		return c
	}
	var off, sum float64
	reached := int64(0)
	for _, load := range knots {
		p, e := pm.Power(fraction(load))
		reached = max(reached, roundToInt(p))
		c.Points = append(c.Points, power.Point{Load: load, Power: reached})
		off, sum = off+e, sum+p
	}
	if sum > 0 {
		c.ErrorPPM = roundToInt(off / sum * power.PPM)
	}
	return c
}
