package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A PowerModel is the learned relation of power to load, of one meter or one domain. The zero value
// is untrained.
//
// It keeps the mean power at several loads and fits to them
//
//	power = static + k x load^p
//
// for each of a set of exponents, from strongly concave (machines that wake up as a whole) to
// slightly convex. The result is the mean over the exponents weighted by their fit, and their
// spread is part of the error: if only a narrow range of loads was seen, all exponents fit, and the
// error outside the range is large.
type PowerModel struct {
	bins   [len(edges)]bin
	points int // total points, which may exceed the memory of the bins
	fit    fit
	curve  *power.Curve // of such machines, with idle power; nil if none is known
	// held is the point of the latest tick, if that was usable.
	held struct {
		ok          bool
		load, power float64
	}
}

// A bin holds statistics of the points with loads between two edges.
type bin struct {
	weight      float64 // number of points, up to binMemory
	load, power float64 // means, 0 to 1 and uW
	// Variance of load, variance of power in uW^2, covariance in uW.
	loadVariance, powerVariance, covariance float64
}

// binMemory limits the weight of a bin: a new point moves its mean by at least 1/binMemory. At one
// tick a second that is ten minutes at this load. A bin without new points forgets nothing, so that
// a night of idling does not erase what full load draws.
const binMemory = 600

// edges are the upper edges of the bins, finer near zero, where the fit determines static power.
var edges = [...]float64{.005, .01, .02, .03, .05, .075, .1, .15, .2, .25, .3, .35, .4, .45, .5, .55, .6, .65, .7, .75, .8, .85, .9, .95, 1}

// exponents are the fitted exponents, equally likely before any data. Published load tests of
// servers lie within them.
var exponents = [...]float64{.4, .45, .5, .55, .6, .65, .7, .75, .8, .85, .9, .95, 1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4}

// Learn takes the power of a tick and adds that of the previous tick if both are usable: a counter that
// stops in the middle of a tick shows it in the next one only. It adds the first power at once.
func (pm *PowerModel) Learn(usable bool, load, power float64) {
	h := &pm.held
	switch {
	case usable && !pm.IsTrained():
		pm.Add(load, power)
		return
	case usable && h.ok:
		pm.Add(h.load, h.power)
	}
	h.ok, h.load, h.power = usable, load, power
}

// Add adds a power in uW measured at a load of 0 to 1.
func (pm *PowerModel) Add(load, power float64) {
	i := 0
	for i < len(edges)-1 && load > edges[i] {
		i++
	}
	b := &pm.bins[i]
	off, aside := power-b.power, load-b.load
	if b.weight >= 8 {
		// An outlier moves the mean little; if the power really changed, the variance grows until
		// the mean follows.
		most := 4*math.Sqrt(b.powerVariance) + .01*b.power
		off = max(-most, min(off, most))
	}
	b.weight = min(b.weight+1, binMemory)
	part := 1 / b.weight
	b.load += aside * part
	b.power += off * part
	b.loadVariance += (aside*aside*(1-part) - b.loadVariance) * part
	b.powerVariance += (off*off*(1-part) - b.powerVariance) * part
	b.covariance += (off*aside*(1-part) - b.covariance) * part
	pm.points++
}

// IsTrained reports whether the model has any points.
func (pm *PowerModel) IsTrained() bool { return pm.points > 0 }

// Static returns the power without load and its error in uW, which holds in 95 of 100 cases.
func (pm *PowerModel) Static() (power, off float64) {
	f := pm.fitted()
	return f.static, f.error
}

// Nonlinearity returns the deviation of power from a straight line: the mean of |1 - p|. The power
// of a CPU second changes with load as load^(p-1).
func (pm *PowerModel) Nonlinearity() float64 { return pm.fitted().nonlinearity }

// Power returns the power at a load and its error, in uW.
func (pm *PowerModel) Power(load float64) (power, off float64) {
	f := pm.fitted()
	if f.hasRange {
		power, off = pm.predict(f, load)
		return power, math.Hypot(off, 2*f.noise)
	}
	// Only one load is known. The power is on one of the lines from the possible idle power through
	// it.
	b := pm.binFrom(0)
	rise := math.Pow(load/max(b.load, .001), usualExponent)
	power = f.static + (b.power-f.static)*rise
	return power, f.error*math.Abs(1-rise) + extrapolationError*math.Abs(power-b.power) + 2*f.noise
}

// predict returns the power at a load by the lines of f, corrected by the deviation of adjacent
// bins, and its error.
func (pm *PowerModel) predict(f *fit, load float64) (power, off float64) {
	power, deviation := f.evaluate(load)
	below, above := pm.binBelow(load), pm.binFrom(load)
	rest, beyond := 0.0, 0.0
	switch {
	case below == nil:
		rest = f.residual(above)
		beyond = above.power - power - rest
	case above == nil:
		rest = f.residual(below)
		beyond = below.power - power - rest
	default:
		part := (load - below.load) / (above.load - below.load)
		rest = f.residual(below)*(1-part) + f.residual(above)*part
	}
	power = max(0, power+rest)
	return power, 2*deviation + math.Abs(rest)/2 + extrapolationError*math.Abs(beyond) + minModelError*power
}

// binBelow returns the non-empty bin with the highest load that is less than load; nil if there is
// none.
func (pm *PowerModel) binBelow(load float64) (below *bin) {
	for i := range pm.bins {
		if b := &pm.bins[i]; b.weight > 0 && b.load < load {
			below = b
		}
	}
	return below
}

// binFrom returns the non-empty bin with the lowest load that is not less than load; nil if there is
// none.
func (pm *PowerModel) binFrom(load float64) *bin {
	for i := range pm.bins {
		if b := &pm.bins[i]; b.weight > 0 && b.load >= load {
			return b
		}
	}
	return nil
}
