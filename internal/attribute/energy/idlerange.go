package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// An idleRange is a range of idle power in uW, known before the machine was ever idle.
type idleRange struct{ least, most float64 }

func (r idleRange) middle() float64 { return (r.least + r.most) / 2 }
func (r idleRange) error() float64  { return (r.most - r.least) / 2 }

// idleSpread returns by which factors the ratio of idle to active power of a machine may be less
// and more than that of its curve. With the table's curves the ranges cover 95 of 100 published
// results of other machines at half load: see TestIdleRangeCovers. There is more room below than
// those need, because they are of whole machines, and packages sleep deeper than fans, disks and
// power supplies; machines of unknown CPUs, such as laptops, far deeper.
func idleSpread(c *power.Curve) (down, up float64) {
	switch {
	case c.IdleErrorPPM == 0: // measured on a machine of the same make
		f := 1 + 3*float64(c.ErrorPPM)/power.PPM
		return f, f
	case c.IdleErrorPPM <= idleErrorPPM[modelErrorPPM]:
		return 2.6, 1.9
	case c.IdleErrorPPM <= idleErrorPPM[familyErrorPPM]:
		return 3.5, 2.6
	}
	return 13, 2.5
}

const (
	// steepLoad is the load below which results deviate more from their curve: at a tenth of full
	// load about twice as much, in the logarithm, as at half load.
	steepLoad = .45
	// wakingLoad is the lowest load of the table's results above idle. Below it power may rise much
	// faster than in a straight line, as packages and clocks wake up.
	wakingLoad = .1
	// idleLoad is the load from which down lines through the power at several loads determine idle
	// power. Of lines through higher loads alone, a third or more are off by more than their error:
	// how power rises between two loads says little about how it rises from idle.
	idleLoad = .03
	// A machine may be completely awake, and draw as much as at wakingLoad, from earliestAwake on. The
	// lines know nothing of this: below the lowest load seen, power may fall by wakingError times what
	// they say for all loads up to wakingLoad; below earliestAwake by less, as the load to the power of
	// wakingExponent. With these values the error covers 95 of 100, see TestRestCovers.
	earliestAwake  = .02
	wakingError    = 1.25
	wakingExponent = 1.3
)

// idleRange returns the idle power that the curve and the learned points allow:
//
//	idle = power(load) x r / (1 + r), r = f x curve(0) / (curve(load) - curve(0))
//
// with f between the factors of idleSpread, by the load that says most. noise is the standard
// deviation of a point.
func (pm *PowerModel) idleRange(noise float64) (best idleRange) {
	down, up := idleSpread(pm.curve)
	idle := float64(CurvePower(pm.curve, 0))
	share := func(load, factor float64) float64 {
		active := max(0, float64(CurvePower(pm.curve, roundToInt(load*power.PPM)))-idle)
		return idle * factor / (idle*factor + active)
	}
	best.most = math.MaxFloat64
	for i := range pm.bins {
		b := &pm.bins[i]
		if b.weight == 0 {
			continue
		}
		off := 2 * noise / math.Sqrt(b.weight)
		steep := max(0, steepLoad-b.load) / steepLoad
		r := idleRange{max(0, b.power-off) * share(max(b.load, wakingLoad), math.Pow(down, -1-.8*steep)), (b.power + off) * share(b.load, math.Pow(up, 1+2*steep))}
		if r.most-r.least < best.most-best.least {
			best = r
		}
	}
	return best
}

// combine returns the mean of two independent estimates, weighted by their errors, and its error.
// That is larger if the estimates differ by more than their errors.
func combine(a, aError, b, bError float64) (value, off float64) {
	aWeight, bWeight := 1/max(1, aError*aError), 1/max(1, bError*bError)
	value = (a*aWeight + b*bWeight) / (aWeight + bWeight)
	disagreement := math.Abs(a-b) / math.Hypot(max(1, aError), max(1, bError))
	return value, max(1, disagreement) / math.Sqrt(aWeight+bWeight)
}

// setCurves gives the curve to the models of the domains that it describes: to packages, and to the
// rest if that is the whole machine. The power of memory, and of the rest beyond packages, rises
// otherwise with the load. A host's share is a portion of a machine.
func (m *Meters) setCurves() {
	c := &m.config.Curve
	if CurvePower(c, 0) == 0 {
		return
	}
	apart := c.Domain != power.Rest
	for i := range m.meters {
		switch ms := &m.meters[i]; {
		case ms.From == power.Host:
			return
		case ms.Level == power.Part && ms.Domain != power.GPU:
			apart = true
		}
	}
	m.domainModels[power.Package].curve = c
	if !apart {
		m.domainModels[power.Rest].curve = c
	}
}
