package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A DomainEnergy is the energy of one domain in a tick, in uJ. It is Absent where
// nothing shows it and nothing says what it may be.
type DomainEnergy struct {
	Quality usage.Quality // Measured or Modelled; dividing it apportions
	Energy  int64         // all of it
	Idle    int64         // what would have been used had nothing run
	// Error is by how much Energy may be off, IdleError and ActiveError by how
	// much Idle and what is left may be. The three are not a sum: where idle
	// energy begins changes both parts and not the whole.
	Error, IdleError, ActiveError int64
	divisionError                 divisionError
}

// Active is the energy that was used because something ran.
func (a *DomainEnergy) Active() int64 { return a.Energy - a.Idle }

// A Rule says by what active energy is divided.
type Rule uint8

const (
	// ByCPU goes by CPU time.
	ByCPU Rule = iota
	// ByTraffic goes by bytes to and from memory, or by time of a device: by
	// what uses the energy itself.
	ByTraffic
	// ByResident goes by bytes held in memory, where traffic is not counted.
	ByResident
)

// Split divides the active energy among workloads by weights, and gives to each
// its part of the error. What it returns is left, because no weight is above
// zero: it is to be booked as idle. The parts and what is left sum to the active
// energy exactly. energy and errors are as long as weights.
func (a *DomainEnergy) Split(by Rule, weights, energy, errors []int64) (left int64) {
	active := a.Active()
	if !Divide(active, weights, energy) {
		clear(errors)
		return active
	}
	off := a.divisionError.relativePPM(by, weights)
	Divide(a.ActiveError, weights, errors)
	for i, e := range energy {
		if e > 0 && e < active {
			// Who has nearly all of it has little to gain or lose.
			errors[i] = AddSaturated(1, rootSumSquare(errors[i], MulDiv(MulDiv(e, off, power.PPM), active-e, active)))
		}
	}
	return 0
}

// domainEnergy says how much of a domain's energy is idle, and how far it all may be off.
func (m *Meters) domainEnergy(d power.Domain, te tickEnergy, iv *Interval) DomainEnergy {
	if te.quality == usage.Absent {
		return DomainEnergy{}
	}
	pm := &m.domainModels[d]
	if (te.quality == usage.Measured || te.hasIdle) && !te.misaligned && te.energy > 0 && iv.isRepresentative() {
		pm.Add(fraction(iv.Load), float64(meanPower(te.energy, iv.Elapsed)))
	}
	if m.simulated {
		te.quality = usage.Modelled // though it is learned from as if it were not
	}
	a := DomainEnergy{Quality: te.quality, Energy: te.energy, Error: rootSumSquare(te.classError, te.otherError)}
	static, off := pm.Static()
	if !pm.IsTrained() { // it is something between nothing and all
		static = float64(meanPower(a.Energy, iv.Elapsed)) / 2
		off = static
	}
	a.divisionError = divisionError{elapsed: iv.Elapsed, cpus: iv.CPUs, nonlinearity: pm.Nonlinearity(), noise: pm.fitted().noise}
	if m.usesCurve(d) {
		static, off = float64(CurvePower(&m.config.Curve, 0)), 0
		a.divisionError.nonlinearity, a.divisionError.noise = 1-usualExponent, 0
	}
	if te.hasIdle { // what draws the idle power is the host
		a.Idle = te.idle
		a.IdleError = MulDiv(a.Error, a.Idle, max(1, a.Energy))
		a.ActiveError = a.Error - a.IdleError
		a.divisionError.noise /= max(1, float64(meanPower(a.Active(), iv.Elapsed)))
		return a
	}
	if given := m.config.Static[d]; given > 0 {
		static, off = float64(given), 0
	}
	ns := iv.Elapsed
	if te.quality == usage.Modelled {
		ns = iv.runningTime() // nothing stood in for the rest
	}
	a.Idle = min(a.Energy, energyOver(roundToInt(static), ns))
	if iv.Load <= 0 {
		a.Idle = a.Energy
	}
	// Neither part can be off by more than what there is.
	blur := min(energyOver(roundToInt(off), ns), max(a.Idle, a.Active()))
	class := MulDiv(te.classError, a.Active(), max(1, a.Energy))
	a.IdleError = rootSumSquare(te.classError-class, blur)
	a.ActiveError = rootSumSquare(class, te.otherError, blur)
	if c := &m.config.Curve; m.usesCurve(d) && m.config.Static[d] == 0 {
		a.IdleError = max(a.IdleError, MulDiv(a.Idle, c.IdleErrorPPM, power.PPM))
		a.ActiveError = max(a.ActiveError, MulDiv(a.Active(), riseError(c, iv.Load), power.PPM))
		// All is off by what idle is at least, which is in it.
		a.Error = max(a.Error, a.IdleError)
	}
	a.divisionError.noise /= max(1, float64(meanPower(a.Active(), iv.Elapsed)))
	return a
}
