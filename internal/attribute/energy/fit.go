package energy

import "math"

const (
	// usualExponent is assumed if no exponent could be fitted.
	usualExponent = .7
	// maxRise limits how much full load raises a machine's power, as a multiple of its idle power.
	// In the SPECpower_ssj2008 results idle machines draw a tenth of full load or more.
	maxRise = 9
	// minModelError is the minimum relative error of a model: no machine follows one exactly.
	// minBinError is that of a bin's mean.
	minModelError, minBinError = .005, .001
	// extrapolationError is the error of the power beyond all seen loads, relative to the change
	// that the model predicts: when all CPUs sleep the package sleeps too, and when all run their
	// clocks change.
	extrapolationError = .15
	// minRange is the minimum range of loads for fitting lines.
	minRange = .05
)

// A fit is computed from the bins on demand.
type fit struct {
	points       int // points when it was computed
	static       float64
	error        float64 // of static: two standard deviations, or the possible range
	noise        float64 // standard deviation of one point from the best line
	nonlinearity float64 // mean of |1 - p|
	lines        [len(exponents)]line
	hasRange     bool // the range of loads allows lines
}

// A line is the fit with one exponent.
type line struct {
	probability   float64 // of this exponent
	static, slope float64 // uW, and uW more at full load
	meanX, s, sxx float64 // of the regression in x = load^p
	chi           float64 // squared deviations of bins, relative to their errors
	points        float64 // squared deviations of points within their bins, uW^2
	weight        float64 // of all bins
}

// fitted returns the fit, recomputing it after 5 % more points or a minute's worth.
func (pm *PowerModel) fitted() *fit {
	if pm.points > pm.fit.points+min(pm.fit.points/20, 60) {
		pm.fit = pm.compute()
	}
	return &pm.fit
}

func (pm *PowerModel) compute() fit {
	f := fit{points: pm.points, nonlinearity: 1 - usualExponent}
	first, last := 1.0, 0.0
	var weight, squares float64
	for i := range pm.bins {
		if b := &pm.bins[i]; b.weight > 0 {
			first, last = min(first, b.load), max(last, b.load)
			weight += b.weight
			squares += b.weight * max(b.powerVariance, b.power*b.power/1e4)
		}
	}
	f.noise = math.Sqrt(squares / weight)
	// Static power is at most the power at any load, and at least what maxRise implies for any.
	least, most := 0.0, math.MaxFloat64
	for i := range pm.bins {
		if b := &pm.bins[i]; b.weight > 0 {
			off := 2 * f.noise / math.Sqrt(b.weight)
			most = min(most, b.power+off)
			least = max(least, (b.power-off)/(1+maxRise*math.Pow(b.load, usualExponent)))
		}
	}
	least = min(least, most)
	expected := idleRange{least, most}
	if pm.curve != nil {
		expected = pm.idleRange(f.noise)
		least = min(least, expected.least)
	}
	f.static, f.error = expected.middle(), expected.error()
	if last-first < minRange {
		return f
	}
	f.hasRange = true
	pm.regress(&f)
	f.nonlinearity = 0
	for i, p := range exponents {
		f.nonlinearity += f.lines[i].probability * math.Abs(1-p)
	}
	static, off := pm.predict(&f, 0)
	switch {
	case pm.curve == nil:
		f.static, f.error = static, off
	case first <= idleLoad:
		awake, _ := pm.predict(&f, wakingLoad)
		off = math.Hypot(pm.staticError(&f, static), wakingError*max(0, awake-static)*math.Pow(min(1, first/earliestAwake), wakingExponent))
		f.static, f.error = combine(static, off, expected.middle(), expected.error())
	}
	f.limit(least, most)
	return f
}

// staticError returns the error of the power that the lines give below the lowest load seen.
func (pm *PowerModel) staticError(f *fit, static float64) float64 {
	b := pm.binFrom(0)
	var mean, square float64
	for i, p := range exponents {
		n := &f.lines[i]
		rise := n.slope * math.Pow(b.load, p)
		mean += n.probability * rise
		square += n.probability * rise * rise
	}
	fall := b.power - static
	return 2*math.Sqrt(max(0, square-mean*mean)) + 2*f.noise/math.Sqrt(b.weight) + extrapolationError*math.Abs(fall) + 2*minModelError*static
}

// limit limits static power to the possible range, and its error to what it may be off in it.
func (f *fit) limit(least, most float64) {
	f.static = max(least, min(f.static, most))
	f.error = min(f.error, max(most-f.static, f.static-least))
}

// evaluate returns the mean of the lines at a load, and its standard deviation.
func (f *fit) evaluate(load float64) (power, deviation float64) {
	var square, own float64
	for i, p := range exponents {
		n := &f.lines[i]
		if n.probability < 1e-6 {
			continue
		}
		x := math.Pow(load, p)
		y := n.static + n.slope*x
		power += n.probability * y
		square += n.probability * y * y
		own += n.probability * (1/n.s + (x-n.meanX)*(x-n.meanX)/n.sxx)
	}
	return power, math.Sqrt(max(0, square-power*power) + own)
}

// residual returns a bin's deviation from the lines, reduced for few points.
func (f *fit) residual(b *bin) float64 {
	power, _ := f.evaluate(b.load)
	return (b.power - power) * b.weight / (b.weight + 2)
}

// regress fits a line for each exponent and computes its probability from the deviation of the bins
// relative to that of single points.
func (pm *PowerModel) regress(f *fit) {
	var best, count int
	for i, p := range exponents {
		count = f.lines[i].fitBins(pm, p, 0)
		if f.lines[i].chi < f.lines[best].chi {
			best = i
		}
	}
	// The deviation from the best line is noise of points and of bins.
	n := &f.lines[best]
	f.noise = math.Sqrt(n.points / max(1, n.weight-2))
	for i, p := range exponents {
		f.lines[i].fitBins(pm, p, f.noise)
	}
	scale := max(1, n.chi/float64(max(1, count-3)))
	sum, least := 0.0, math.MaxFloat64
	for i := range f.lines {
		least = min(least, f.lines[i].chi)
	}
	for i := range f.lines {
		n := &f.lines[i]
		n.probability = math.Exp((least - n.chi) / (2 * scale))
		n.s /= scale
		n.sxx /= scale
		sum += n.probability
	}
	for i := range f.lines {
		f.lines[i].probability /= sum
	}
}

// fitBins fits the line of exponent p to the bins, whose points each have the given noise, and
// returns the number of bins.
func (n *line) fitBins(pm *PowerModel, p, noise float64) (count int) {
	*n = line{}
	var weights, xs [len(edges)]float64
	var meanY, sxy float64
	for i := range pm.bins {
		b := &pm.bins[i]
		if b.weight == 0 {
			continue
		}
		count++
		off := minBinError * b.power
		weights[i], xs[i] = 1/(noise*noise/b.weight+off*off+1), math.Pow(b.load, p)
		n.s += weights[i]
		n.meanX += weights[i] * xs[i]
		meanY += weights[i] * b.power
	}
	n.meanX /= n.s
	meanY /= n.s
	for i, w := range weights {
		n.sxx += w * (xs[i] - n.meanX) * (xs[i] - n.meanX)
		sxy += w * (xs[i] - n.meanX) * (pm.bins[i].power - meanY)
	}
	n.slope = max(0, sxy/n.sxx)
	n.static = meanY - n.slope*n.meanX
	for i, w := range weights {
		b := &pm.bins[i]
		d := b.power - n.static - n.slope*xs[i]
		n.chi += w * d * d
		// Within a bin, except the first, the line is nearly straight.
		tilt := n.slope * p * xs[i] / max(b.load, edges[0])
		n.points += b.weight * max(0, b.powerVariance-2*tilt*b.covariance+tilt*tilt*b.loadVariance)
		n.weight += b.weight
	}
	return count
}
