package energy

import "math"

// A Law is what was learned of how power follows load: of one meter, or of one
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
type Law struct {
	bins [len(edges)]bin
	seen int // points, of which there may be more than the bins remember
	fit  fit
}

// A bin holds what was seen at loads between two edges: means, and how the
// points lie around them.
type bin struct {
	weight      float64 // points, up to binMemory
	load, power float64 // means, 0 to 1 and uW
	// Variances and covariance: of load, of power in uW^2, of both in uW.
	loads, powers, both float64
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
func (l *Law) Add(load, power float64) {
	i := 0
	for i < len(edges)-1 && load > edges[i] {
		i++
	}
	b := &l.bins[i]
	off, aside := power-b.power, load-b.load
	if b.weight >= 8 {
		// One outlier moves little; if the power changed for good, the variance
		// grows until it follows.
		most := 4*math.Sqrt(b.powers) + .01*b.power
		off = max(-most, min(off, most))
	}
	b.weight = min(b.weight+1, binMemory)
	part := 1 / b.weight
	b.load += aside * part
	b.power += off * part
	b.loads += (aside*aside*(1-part) - b.loads) * part
	b.powers += (off*off*(1-part) - b.powers) * part
	b.both += (off*aside*(1-part) - b.both) * part
	l.seen++
}

// Known says whether anything was learned.
func (l *Law) Known() bool { return l.seen > 0 }

// Static returns the power of the machine when it does nothing, and how far
// that may be off: in 95 of 100 cases no more, in uW.
func (l *Law) Static() (power, off float64) {
	f := l.fitted()
	return f.static, f.error
}

// Bend returns how much power differs from a straight line: the mean of |1 - p|.
// The power that a CPU second costs changes with load as load^(p-1).
func (l *Law) Bend() float64 { return l.fitted().bend }

// Power returns the power at a load, and how far that may be off, in uW.
func (l *Law) Power(load float64) (power, off float64) {
	f := l.fitted()
	if f.ranged {
		power, off = l.predict(f, load)
		return power, math.Hypot(off, 2*f.noise)
	}
	// One load is known. The power is on one of the lines between it and what
	// the idle machine may draw.
	b := l.next(0, 1)
	rise := math.Pow(load/max(b.load, .001), usualExponent)
	power = f.static + (b.power-f.static)*rise
	return power, f.error*math.Abs(1-rise) + unseen*math.Abs(power-b.power) + 2*f.noise
}

// predict returns the power at a load by the lines of f and by what the bins
// next to it show beyond them, and how far that may be off.
func (l *Law) predict(f *fit, load float64) (power, off float64) {
	power, deviation := f.at(load)
	below, above := l.next(load, -1), l.next(load, 1)
	rest, beyond := 0.0, 0.0
	switch {
	case below == nil:
		rest = f.miss(above)
		beyond = above.power - power - rest
	case above == nil:
		rest = f.miss(below)
		beyond = below.power - power - rest
	default:
		part := (load - below.load) / (above.load - below.load)
		rest = f.miss(below)*(1-part) + f.miss(above)*part
	}
	power = max(0, power+rest)
	return power, 2*deviation + math.Abs(rest)/2 + unseen*math.Abs(beyond) + misfit*power
}

// next returns the nearest bin that has points whose load is less than load, or
// no less, as step is -1 or 1; nil where there is none.
func (l *Law) next(load float64, step int) *bin {
	i := 0
	if step < 0 {
		i = len(l.bins) - 1
	}
	for ; i >= 0 && i < len(l.bins); i += step {
		if b := &l.bins[i]; b.weight > 0 && (b.load < load) == (step < 0) {
			return b
		}
	}
	return nil
}
