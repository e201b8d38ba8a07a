package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A DomainEnergy is the energy of one domain in a tick, in uJ. It is Absent if neither a meter nor
// a model shows it.
type DomainEnergy struct {
	Quality usage.Quality // Measured or Modelled; division makes it apportioned
	Energy  int64         // total
	Idle    int64         // what would have been used without load
	// Error, IdleError and ActiveError are the errors of Energy, Idle and the rest. They do not add
	// up: an error in the boundary between idle and active changes both parts but not the total.
	Error, IdleError, ActiveError int64
	divisionError                 divisionError
}

// Active returns the energy above idle.
func (d *DomainEnergy) Active() int64 { return d.Energy - d.Idle }

// A Rule says how active energy is divided.
type Rule uint8

const (
	// ByCPU divides by CPU time.
	ByCPU Rule = iota
	// ByTraffic divides by bytes to and from memory, or by device time: by the cause of the energy.
	ByTraffic
	// ByResident divides by bytes held in memory, where traffic is not counted.
	ByResident
)

// Split divides the active energy among workloads by weights, and each part's share of the error.
// It returns the energy left if all weights are zero, which the caller books as idle. The parts and
// the rest sum to the active energy exactly. energy and errors are as long as weights.
func (d *DomainEnergy) Split(by Rule, weights, energy, errors []int64) (left int64) {
	active := d.Active()
	if !Divide(active, weights, energy) {
		clear(errors)
		return active
	}
	off := d.divisionError.relativePPM(by, weights)
	Divide(d.ActiveError, weights, errors)
	for i, e := range energy {
		if e > 0 && e < active {
			// A part near the total cannot be far off.
			errors[i] = AddSaturated(1, rootSumSquare(errors[i], MulDiv(MulDiv(e, off, power.PPM), active-e, active)))
		}
	}
	return 0
}

// domainEnergy divides a domain's energy into idle and active, with their errors.
func (m *Meters) domainEnergy(d power.Domain, te tickEnergy, iv *Interval) DomainEnergy {
	pm := &m.domainModels[d]
	if te.quality == usage.Absent {
		pm.Learn(false, 0, 0)
		return DomainEnergy{}
	}
	usable := (te.quality == usage.Measured || te.hasIdle) && !te.misaligned && te.energy > 0 && iv.isRepresentative()
	pm.Learn(usable, fraction(iv.Load), float64(meanPower(te.energy, iv.Elapsed)))
	if m.simulated {
		te.quality = usage.Modelled // although models learn from it
	}
	a := DomainEnergy{Quality: te.quality, Energy: te.energy, Error: rootSumSquare(te.classError, te.otherError)}
	static, off := pm.Static()
	if !pm.IsTrained() { // between nothing and everything
		static = float64(meanPower(a.Energy, iv.Elapsed)) / 2
		off = static
	}
	a.divisionError = divisionError{elapsed: iv.Elapsed, cpus: iv.CPUs, nonlinearity: pm.Nonlinearity(), noise: pm.fitted().noise}
	if m.usesCurve(d) {
		static, off = float64(CurvePower(&m.config.Curve, 0)), 0
		a.divisionError.nonlinearity, a.divisionError.noise = 1-usualExponent, 0
	}
	if te.hasIdle { // the host draws the idle power
		a.Idle = te.idle
		a.IdleError = MulDiv(a.Error, a.Idle, a.Energy)
		a.ActiveError = a.Error - a.IdleError
		a.divisionError.noise /= max(1, float64(meanPower(a.Active(), iv.Elapsed)))
		return a
	}
	if given := m.config.Static[d]; given > 0 {
		static, off = float64(given), 0
	}
	ns := iv.Elapsed
	if te.quality == usage.Modelled {
		ns = iv.runningTime() // nothing was booked for suspended time
	}
	a.Idle = min(a.Energy, energyOver(roundToInt(static), ns))
	if iv.Load <= 0 {
		a.Idle = a.Energy
	}
	// Neither part can be off by more than the total.
	blur := min(energyOver(roundToInt(off), ns), max(a.Idle, a.Active()))
	class := MulDiv(te.classError, a.Active(), a.Energy)
	a.IdleError = rootSumSquare(te.classError-class, blur)
	a.ActiveError = rootSumSquare(class, te.otherError, blur)
	if c := &m.config.Curve; m.usesCurve(d) && m.config.Static[d] == 0 {
		a.IdleError = max(a.IdleError, MulDiv(a.Idle, c.IdleErrorPPM, power.PPM))
		a.ActiveError = max(a.ActiveError, MulDiv(a.Active(), riseError(c, iv.Load), power.PPM))
		// The total includes the error of idle.
		a.Error = max(a.Error, a.IdleError)
	}
	a.divisionError.noise /= max(1, float64(meanPower(a.Active(), iv.Elapsed)))
	return a
}
