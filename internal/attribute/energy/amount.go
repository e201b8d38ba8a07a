package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// An Amount is the energy of one domain in a tick, in uJ. It is Absent where
// nothing shows it and nothing says what it may be.
type Amount struct {
	Quality usage.Quality // Measured or Modelled; dividing it apportions
	Energy  int64         // all of it
	Idle    int64         // what would have been used had nothing run
	// Error is by how much Energy may be off, IdleError and ActiveError by how
	// much Idle and what is left may be. The three are not a sum: where idle
	// energy begins changes both parts and not the whole.
	Error, IdleError, ActiveError int64
	price                         price
}

// Active is the energy that was used because something ran.
func (a *Amount) Active() int64 { return a.Energy - a.Idle }

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
func (a *Amount) Split(by Rule, weights, energy, errors []int64) (left int64) {
	active := a.Active()
	if !Divide(active, weights, energy) {
		clear(errors)
		return active
	}
	off := a.price.off(by, weights)
	Divide(a.ActiveError, weights, errors)
	for i, e := range energy {
		if e > 0 && e < active {
			// Who has nearly all of it has little to gain or lose.
			errors[i] = plus(1, together(errors[i], share(share(e, off, power.PPM), active-e, active)))
		}
	}
	return 0
}

// amount says how much of a domain's energy is idle, and how far it all may be off.
func (m *Meters) amount(d power.Domain, f flow, s *Span) Amount {
	if f.quality == usage.Absent {
		return Amount{}
	}
	l := &m.laws[d]
	if (f.quality == usage.Measured || f.split) && !f.blurred && f.energy > 0 && s.teaches() {
		l.Add(fraction(s.Load), float64(mean(f.energy, s.Elapsed)))
	}
	if m.played {
		f.quality = usage.Modelled // though it is learned from as if it were not
	}
	a := Amount{Quality: f.quality, Energy: f.energy, Error: together(f.class, f.error)}
	static, off := l.Static()
	if !l.Known() { // it is something between nothing and all
		static = float64(mean(a.Energy, s.Elapsed)) / 2
		off = static
	}
	a.price = price{elapsed: s.Elapsed, cpus: s.CPUs, bend: l.Bend(), noise: l.fitted().noise}
	if m.guesses(d) {
		static, off = float64(At(&m.config.Curve, 0)), 0
		a.price.bend, a.price.noise = 1-usualExponent, 0
	}
	if f.split { // what draws the idle power is the host
		a.Idle = f.idle
		a.IdleError = share(a.Error, a.Idle, max(1, a.Energy))
		a.ActiveError = a.Error - a.IdleError
		a.price.noise /= max(1, float64(mean(a.Active(), s.Elapsed)))
		return a
	}
	if given := m.config.Static[d]; given > 0 {
		static, off = float64(given), 0
	}
	ns := s.Elapsed
	if f.quality == usage.Modelled {
		ns = s.awake() // nothing stood in for the rest
	}
	a.Idle = min(a.Energy, over(rounded(static), ns))
	if s.Load <= 0 {
		a.Idle = a.Energy
	}
	// Neither part can be off by more than what there is.
	blur := min(over(rounded(off), ns), max(a.Idle, a.Active()))
	class := share(f.class, a.Active(), max(1, a.Energy))
	a.IdleError = together(f.class-class, blur)
	a.ActiveError = together(class, f.error, blur)
	if c := &m.config.Curve; m.guesses(d) && m.config.Static[d] == 0 {
		a.IdleError = max(a.IdleError, share(a.Idle, c.IdleErrorPPM, power.PPM))
		a.ActiveError = max(a.ActiveError, share(a.Active(), riseError(c, s.Load), power.PPM))
		// All is off by what idle is at least, which is in it.
		a.Error = max(a.Error, a.IdleError)
	}
	a.price.noise /= max(1, float64(mean(a.Active(), s.Elapsed)))
	return a
}
