package energy

import "math"

// A PowerModel is what was learned of how power follows load: of one meter, or of one
// domain. The zero value knows nothing.
//
// It keeps the mean power at a few loads and fits to them
//
//	power = static + k x load^p
//
// for each of a set of exponents, from the steeply concave ones of machines
// that wake up as a whole to slightly convex ones. What it says is the mean over
// the exponents, each by how well it fits, and how far they differ is part of
// the error: where only a narrow range of loads was seen, all of them fit, and
// the error of what lies outside is large.
type PowerModel struct {
	bins   [len(edges)]bin
	points int // points, of which there may be more than the bins remember
	fit    fit
}

// A bin holds what was seen at loads between two edges: means, and how the
// points lie around them.
type bin struct {
	weight      float64 // points, up to binMemory
	load, power float64 // means, 0 to 1 and uW
	// Variances and covariance: of load, of power in uW^2, of both in uW.
	loadVariance, powerVariance, covariance float64
}

// binMemory is how many points a bin goes back: a new one moves its mean by 1/binMemory
// at least. At one tick a second that is ten minutes at this load. A bin whose
// load does not come up forgets nothing, so that a night of idling does not
// wipe out what full load costs.
const binMemory = 600

// edges are the upper edges of the bins: finer near zero, where the fit ends.
var edges = [...]float64{.005, .01, .02, .03, .05, .075, .1, .15, .2, .25, .3, .35, .4, .45, .5, .55, .6, .65, .7, .75, .8, .85, .9, .95, 1}

// exponents are those that are fitted, and before anything was seen each is as
// likely. Published load tests of servers lie within.
var exponents = [...]float64{.4, .45, .5, .55, .6, .65, .7, .75, .8, .85, .9, .95, 1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4}

// Add learns that the power was as given at a load of 0 to 1.
func (pm *PowerModel) Add(load, power float64) {
	i := 0
	for i < len(edges)-1 && load > edges[i] {
		i++
	}
	b := &pm.bins[i]
	off, aside := power-b.power, load-b.load
	if b.weight >= 8 {
		// One outlier moves little; if the power changed for good, the variance
		// grows until it follows.
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

// IsTrained says whether anything was learned.
func (pm *PowerModel) IsTrained() bool { return pm.points > 0 }

// Static returns the power of the machine when it does nothing, and how far
// that may be off: in 95 of 100 cases no more, in uW.
func (pm *PowerModel) Static() (power, off float64) {
	f := pm.fitted()
	return f.static, f.error
}

// Nonlinearity returns how much power differs from a straight line: the mean of |1 - p|.
// The power that a CPU second costs changes with load as load^(p-1).
func (pm *PowerModel) Nonlinearity() float64 { return pm.fitted().nonlinearity }

// Power returns the power at a load, and how far that may be off, in uW.
func (pm *PowerModel) Power(load float64) (power, off float64) {
	f := pm.fitted()
	if f.hasRange {
		power, off = pm.predict(f, load)
		return power, math.Hypot(off, 2*f.noise)
	}
	// One load is known. The power is on one of the lines between it and what
	// the idle machine may draw.
	b := pm.nearestBin(0, 1)
	rise := math.Pow(load/max(b.load, .001), usualExponent)
	power = f.static + (b.power-f.static)*rise
	return power, f.error*math.Abs(1-rise) + extrapolationError*math.Abs(power-b.power) + 2*f.noise
}

// predict returns the power at a load by the lines of f and by what the bins
// next to it show beyond them, and how far that may be off.
func (pm *PowerModel) predict(f *fit, load float64) (power, off float64) {
	power, deviation := f.evaluate(load)
	below, above := pm.nearestBin(load, -1), pm.nearestBin(load, 1)
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

// nearestBin returns the nearest bin that has points whose load is less than load, or
// no less, as step is -1 or 1; nil where there is none.
func (pm *PowerModel) nearestBin(load float64, step int) *bin {
	i := 0
	if step < 0 {
		i = len(pm.bins) - 1
	}
	for ; i >= 0 && i < len(pm.bins); i += step {
		if b := &pm.bins[i]; b.weight > 0 && (b.load < load) == (step < 0) {
			return b
		}
	}
	return nil
}
