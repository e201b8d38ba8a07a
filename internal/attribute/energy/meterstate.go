package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// impossiblePower is the power in uW that a meter of unknown limits cannot show unless it showed
// nearly as much before: no CPU package or accelerator draws it. impossibleBoxPower is the same for
// a whole machine.
const impossiblePower, impossibleBoxPower = 5_000e6, 50_000e6

// A meterState is one meter with its state.
type meterState struct {
	power.Meter
	model PowerModel
	// seen says that at and value are the base of the next difference; readError is the error of
	// value, as the meter counted on while the machine was read.
	seen                 bool
	at, value, readError int64
	absent               int64 // ns of ticks in which it was not configured
	suspended            int64 // ns since at in which the machine was suspended
	peakPower            int64 // highest mean power of a tick, uW
	// suspect is a reading that cannot follow value. If the next reading follows it, counting
	// restarts there.
	suspect reading
	// surplus is the energy in uJ that a substituting model booked beyond the counter.
	// outageSurplus is the part of the present outage, and outageError its error.
	surplus, outageSurplus, outageError int64
	changedAt                           int64 // when the value last changed, ns
	reason                              Reason
	failedSince                         int64      // of reason
	latest                              tickEnergy // of the latest tick
	host                                *hostState // of meters of a host's share; nil for others
}

// A reading is a meter's value at the instant of a snapshot.
type reading struct {
	ok                   bool
	at, value, readError int64
	shown                int64  // the later of the two values around the instant
	problem              string // why ok is false
}

// A tickEnergy is the energy of one or more meters in a tick.
type tickEnergy struct {
	energy     int64 // uJ
	classError int64 // uJ, proportional error, which applies to idle energy too
	otherError int64 // uJ, other errors
	quality    usage.Quality
	misaligned bool // includes earlier energy, or leaves some to later ticks
	// hasIdle says that the meter shows its idle part, which is idle.
	hasIdle bool
	idle    int64
}

// add adds another energy; an absent one adds nothing.
func (te *tickEnergy) add(g tickEnergy) {
	te.energy = AddSaturated(te.energy, g.energy)
	te.classError = AddSaturated(te.classError, g.classError)
	te.otherError = AddSaturated(te.otherError, g.otherError)
	te.quality = max(te.quality, g.quality)
	te.misaligned = te.misaligned || g.misaligned
	te.idle, te.hasIdle = AddSaturated(te.idle, g.idle), te.hasIdle || g.hasIdle
}

// update takes the reading at the end of a tick.
func (ms *meterState) update(r reading, iv *Interval) {
	ms.latest = tickEnergy{}
	ms.suspended += iv.Suspended
	switch why := ms.validate(r, iv); {
	case why != OK:
		ms.bookFailure(why, iv)
	case !ms.seen, ms.Kind == power.Power && ms.reason != OK:
		// A difference needs two values. Before the first one of a meter known from before, the
		// model substitutes.
		ms.bookModelled(iv)
		ms.accept(r)
	case ms.Kind == power.Power:
		ms.bookSensor(r, iv)
	default:
		ms.bookCounter(r, iv)
	}
}

// validate checks whether a reading is plausible.
func (ms *meterState) validate(r reading, iv *Interval) Reason {
	switch {
	case !r.ok:
		return Unreadable
	case r.value < 0, ms.Kind == power.Energy && ms.Wrap > 0 && r.value > ms.Wrap:
		return Jumped
	case ms.Kind == power.Power && r.value > ms.maxPower():
		return Jumped
	case ms.Kind == power.Power:
		return ms.checkStalled(r, iv)
	case !ms.seen:
		return OK
	}
	_, why := ms.gain(r)
	if why == OK {
		return ms.checkStalled(r, iv)
	}
	if ms.suspect.ok {
		if _, again := ms.gainBetween(ms.suspect, r, iv.Suspended); again == OK {
			// The change is real; the earlier value is meaningless.
			ms.at, ms.value, ms.readError, ms.suspended = ms.suspect.at, ms.suspect.value, ms.suspect.readError, iv.Suspended
			ms.surplus -= ms.outageSurplus
			ms.outageSurplus, ms.outageError = 0, 0
			return OK
		}
	}
	ms.suspect = r
	return why
}

// gain returns the energy of a counter since the base of the next difference.
func (ms *meterState) gain(r reading) (int64, Reason) {
	return ms.gainBetween(reading{at: ms.at, value: ms.value}, r, ms.suspended)
}

// gainBetween returns the energy between two readings of a counter, between which the machine was
// suspended for a time. Many counters are reset by a suspend, so one that went back wrapped only if
// the running time explains that.
func (ms *meterState) gainBetween(from, to reading, suspended int64) (int64, Reason) {
	span := max(0, to.at-from.at)
	likely := energyOver(ms.likelyMaxPower(), span)
	if to.value < from.value {
		span = max(0, span-max(0, suspended))
	}
	possible := AddSaturated(energyOver(ms.maxPower(), span+ms.Every), ms.Step)
	return CounterGain(from.value, to.value, ms.Wrap, likely, possible)
}

// CounterGain returns the gain of a counter from one value to another, in uJ, or 0 and the reason
// if the gain cannot be determined. The counter counts modulo wrap uJ; with wrap 0 it never wraps.
// likely is the largest gain to expect in the meantime, and possible the largest that can have
// occurred.
func CounterGain(from, to, wrap, likely, possible int64) (int64, Reason) {
	if wrap > 0 && likely >= wrap {
		return 0, Ambiguous
	}
	d := to - from
	back := d < 0
	if back {
		d += wrap
	}
	switch {
	case back && (wrap == 0 || d > possible):
		return 0, WentBack
	case d > possible:
		return 0, Jumped
	}
	return d, OK
}

// maxPower returns an upper bound of what the meter can show, in uW.
func (ms *meterState) maxPower() int64 {
	switch {
	case ms.Most > 0:
		return ms.Most
	case ms.Level > power.Part:
		return max(impossibleBoxPower, MulDiv(ms.peakPower, 20, 1))
	}
	return max(impossiblePower, MulDiv(ms.peakPower, 20, 1))
}

// likelyMaxPower returns the highest power to expect, in uW: before any reading, that of the
// largest packages.
func (ms *meterState) likelyMaxPower() int64 {
	switch {
	case ms.Most > 0:
		return ms.Most
	case ms.peakPower > 0:
		return MulDiv(ms.peakPower, 4, 1)
	}
	return 500e6
}

// checkStalled checks whether an unchanged value should have changed: a counter, when by its model
// the load would have moved it several steps for half a second, since a simulated one is moved by a
// process; a sensor, when it is unchanged for ten seconds while
// the model contradicts it.
func (ms *meterState) checkStalled(r reading, iv *Interval) Reason {
	switch span := r.at - ms.changedAt; {
	case r.value != ms.value || !ms.seen:
		return OK
	case ms.reason == Stalled:
		return Stalled
	case ms.Kind == power.Power && span >= max(10*second, 10*ms.Every) && ms.contradictsModel(r, iv),
		ms.Kind == power.Energy && iv.Load >= busyLoad && span >= max(second/2, 2*ms.Every) && ms.minGain(iv) >= 4*max(1, ms.Step):
		return Stalled
	}
	return OK
}

// minGain returns the minimum gain of a counter in a tick by the model, in uJ.
func (ms *meterState) minGain(iv *Interval) int64 {
	e, off := ms.predict(iv)
	return max(e-off, e/2)
}

// contradictsModel reports whether a sensor shows its previous value although the load implies
// another.
func (ms *meterState) contradictsModel(r reading, iv *Interval) bool {
	if r.value != ms.value || !ms.model.IsTrained() {
		return false
	}
	p, off := ms.model.Power(fraction(iv.Load))
	v := float64(r.value)
	return math.Abs(p-v) > off+.1*v+4*float64(ms.Step)
}

// busyLoad is the load in ppm from which a meter is expected to move.
const busyLoad = power.PPM / 100

// accept makes r the base of the next difference.
func (ms *meterState) accept(r reading) {
	if r.value != ms.value || !ms.seen {
		ms.changedAt = r.at
	}
	ms.seen, ms.at, ms.value, ms.readError, ms.suspended = true, r.at, r.value, r.readError, 0
	ms.suspect, ms.reason = reading{}, OK
	ms.outageSurplus, ms.outageError = 0, 0
}

// bookCounter books what a counter gained.
//
// A substituting model booked energy that the counter did not show. If the counter kept counting,
// that surplus is deducted again: from this tick, and if less than half of its expected energy
// would remain, from the next ones too, so that in the end the counter's energy is booked. If the
// counter gained only what this tick alone explains, too little for the whole time, it stood still,
// and the surplus of the outage is dropped.
func (ms *meterState) bookCounter(r reading, iv *Interval) {
	gained, _ := ms.gain(r)
	if gained == 0 {
		// The counter moves in steps. The next difference spans the time since the last step.
		ms.latest = tickEnergy{otherError: ms.Step, quality: usage.Measured, misaligned: true}
		ms.reason, ms.suspect = OK, reading{}
		return
	}
	var usual, off int64
	span := r.at - ms.at
	if ms.surplus > 0 {
		usual, off = ms.predict(iv)
		all := AddSaturated(usual, ms.outageSurplus)
		if ms.outageSurplus >= usual/2 && gained <= AddSaturated(usual, off) && all-gained > max(off+ms.outageError, all/4) {
			ms.surplus -= ms.outageSurplus
			span = min(span, iv.Elapsed)
		}
	}
	te := tickEnergy{energy: gained, quality: usage.Measured}
	te.otherError = AddSaturated(AddSaturated(ms.readError, r.readError), AddSaturated(ms.Step, energyOver(meanPower(gained, span), ms.Every/2)))
	switch {
	case ms.surplus > 0:
		te.energy = max(gained-ms.surplus, min(gained, usual)/2)
		ms.surplus -= gained - te.energy
		te.otherError = AddSaturated(te.otherError, distance(te.energy, usual))
		te.quality, te.misaligned = usage.Modelled, true
	case span > iv.Elapsed+iv.Elapsed/2:
		te.otherError = AddSaturated(te.otherError, gained-MulDiv(gained, iv.Elapsed, span))
		te.misaligned = true
	case ms.reason == OK:
		ms.learn(meanPower(gained, span), iv)
	}
	te.classError = MulDiv(te.energy, ms.ErrorPPM, power.PPM)
	ms.latest = te
	ms.accept(r)
}

// bookSensor books the power of a sensor as the trapezoid between two values, with an error of half
// their difference.
func (ms *meterState) bookSensor(r reading, iv *Interval) {
	ns := r.at - ms.at - max(0, iv.Suspended) // no power is drawn during suspend
	low, high := min(ms.value, r.value), max(ms.value, r.value)
	ms.latest = tickEnergy{energy: energyOver(low+(high-low)/2, ns), quality: usage.Measured,
		otherError: AddSaturated(energyOver((high-low)/2, ns), energyOver(ms.Step, ns))}
	ms.latest.classError = MulDiv(ms.latest.energy, ms.ErrorPPM, power.PPM)
	if !ms.contradictsModel(r, iv) {
		ms.learn(low+(high-low)/2, iv)
	}
	ms.accept(r)
}

// learn records a power measured over a whole tick.
func (ms *meterState) learn(uW int64, iv *Interval) {
	if iv.isRepresentative() { // in a shorter tick a step of the meter would look like a peak
		ms.peakPower = max(ms.peakPower, uW)
		ms.model.Add(fraction(iv.Load), float64(uW))
	}
}

// predict returns the model's energy for a tick and its error, in uJ: both 0 without a model.
func (ms *meterState) predict(iv *Interval) (energy, off int64) {
	if ms.model.IsTrained() {
		p, o := ms.model.Power(fraction(iv.Load))
		energy, off = energyOver(roundToInt(p), iv.runningTime()), energyOver(roundToInt(o), iv.runningTime())
	}
	return energy, off
}

// bookFailure books the model's energy for an unusable meter.
func (ms *meterState) bookFailure(why Reason, iv *Interval) {
	if ms.reason == OK {
		ms.failedSince = iv.At - iv.Elapsed
	}
	ms.reason = why
	if ms.bookModelled(iv); ms.Kind == power.Energy && ms.seen {
		ms.surplus = AddSaturated(ms.surplus, ms.latest.energy)
		ms.outageSurplus = AddSaturated(ms.outageSurplus, ms.latest.energy)
		ms.outageError = AddSaturated(ms.outageError, ms.latest.otherError)
	}
}

// bookModelled books the model's energy. Without a model the meter is absent.
func (ms *meterState) bookModelled(iv *Interval) {
	if e, off := ms.predict(iv); ms.model.IsTrained() {
		ms.latest = tickEnergy{energy: e, otherError: off, classError: MulDiv(e, ms.ErrorPPM, power.PPM), quality: usage.Modelled}
	}
}

func distance(a, b int64) int64 { return max(a-b, b-a) }
