package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A hostState is the additional state of the meter that shows the share of this machine, a guest,
// in the energy of its host.
type hostState struct {
	received power.Share // the latest accepted share; no epoch before the first
	// suspect is a rejected share that cannot follow received. If the next share follows it, the
	// host's state really changed.
	suspect power.Share
	// booked is what was booked up to received: the same energy, unless a model substituted for a
	// while, or the host was killed and resumed a little earlier. It equals received plus the
	// meter's surplus.
	booked      power.Share
	quality     usage.Quality // of the latest accepted share
	substituted bool          // in the latest tick a model substituted for energy that will be shown later
	interval    int64         // ns between the two latest accepted shares, by the host's time

	baseline     power.Share   // booked when the window opened
	shares       []power.Share // booked, in the window
	windowEnergy int64         // booked in the window, uJ
}

// minStallTime is how long in ns a share may stay unchanged: a host updates it each second by
// default. A host with longer ticks may take three of them, up to maxStallTime.
const minStallTime, maxStallTime = 5 * second, 180 * second

func (h *hostState) stallTime() int64 { return max(minStallTime, min(3*h.interval, maxStallTime)) }

// maxSetback limits the energy that a killed host may have forgotten, as the time in ns in which
// this machine draws it. If more is missing, counting starts over.
const maxSetback = 3600 * second

// isValidShare reports whether a share's numbers are in range.
func isValidShare(s *power.Share) bool {
	const most = math.MaxInt64 / 4 // so that sums of them fit
	return s.Epoch != "" && min(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) >= 0 &&
		max(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) <= most && s.Modelled <= s.Energy()
}

// takeHost takes the readings of a host's share at the end of a tick. Only the later of the two
// counts, without interpolation: the guest books the energy that the host booked up to a tick of
// the host. A reading without a share comes from another tool, and is an ordinary counter.
func (ms *meterState) takeHost(before, after *power.Reading, iv *Interval) reading {
	h, r := ms.host, after
	if r == nil || r.Err != "" {
		r = before
	}
	h.substituted = false
	if r == nil || r.Err != "" || r.Share == nil {
		if r != nil && r.Err == "" && h.received.Epoch != "" { // a counter after shares has another base
			ms.seen, ms.surplus, h.received = false, 0, power.Share{}
		}
		plain := midpoint(ms.Kind, before, after)
		ms.update(plain, iv)
		if !plain.ok {
			ms.recordSubstitute()
		}
		return plain
	}
	if h.received.Epoch == "" {
		ms.seen = false
	}
	ms.latest = tickEnergy{}
	ms.takeShare(r.Share, r.At, iv)
	return reading{ok: true, at: r.At, value: r.Share.Energy(), shown: r.Share.Energy()}
}

// takeShare books the difference between a share and the last accepted one. If the share cannot be
// used, or counts from another start, a model books the tick.
func (ms *meterState) takeShare(sh *power.Share, at int64, iv *Interval) {
	h := ms.host
	switch last := &h.received; {
	case !isValidShare(sh):
		ms.rejectShare(Jumped, iv)
	case ms.startsOver(last, sh):
		ms.bookModelled(iv)
		if h.received.Epoch != "" {
			h.windowEnergy += ms.latest.energy
		}
		ms.restartFrom(sh, at)
		ms.appendWindowShare()
	case *sh == *last && at-ms.changedAt <= h.stallTime():
		ms.latest = tickEnergy{quality: h.quality, misaligned: true, hasIdle: true}
		ms.reason, h.suspect = OK, power.Share{}
	case *sh == *last:
		ms.rejectShare(Stalled, iv)
	default:
		why := ms.checkFollows(last, sh)
		if why != OK && h.suspect.Epoch == sh.Epoch && ms.checkFollows(&h.suspect, sh) == OK {
			// The suspect share was right.
			if ms.checkStep(last, sh) != OK {
				ms.restartFrom(&h.suspect, at)
			}
			why = OK
		}
		if why != OK {
			ms.rejectShare(why, iv)
			h.suspect = *sh
			return
		}
		ms.bookShare(sh, at, iv)
	}
}

// startsOver reports whether a share counts from another start than the last one.
func (ms *meterState) startsOver(last, sh *power.Share) bool {
	return last.Epoch != sh.Epoch || last.Guest != sh.Guest || sh.N > last.N && ms.lostTooMuch(last, sh)
}

// checkStep checks whether a share can follow an earlier one, regardless of its idle part. It uses
// the host's time, since a host books energy to a suspended machine too.
func (ms *meterState) checkStep(from, to *power.Share) Reason {
	span := to.At - from.At
	possible := AddSaturated(energyOver(ms.maxPower(), AddSaturated(span, ms.Every)), ms.Step)
	switch {
	case to.N <= from.N || span <= 0 || ms.lostTooMuch(from, to):
		return WentBack
	case to.Energy()-from.Energy() > possible, to.Error-from.Error > possible:
		return Jumped
	}
	return OK
}

// checkFollows checks whether a share can follow an earlier one. After a host was killed its active
// and its idle part may both be less, but neither is less while the other grows.
func (ms *meterState) checkFollows(from, to *power.Share) Reason {
	active, idle := to.Active-from.Active, to.Idle-from.Idle
	if active < 0 && idle > 0 || active > 0 && idle < 0 {
		return WentBack
	}
	return ms.checkStep(from, to)
}

// lostTooMuch reports whether a share is less than an earlier one by more than a killed host may
// have forgotten. A machine is assumed to draw at least one watt.
func (ms *meterState) lostTooMuch(from, to *power.Share) bool {
	return from.Energy()-to.Energy() > energyOver(max(ms.likelyMaxPower(), 1e6), maxSetback)
}

// bookShare books the difference between a share and the last one. It deducts the surplus that a
// model booked before, but leaves at least half of the tick's expected energy.
func (ms *meterState) bookShare(sh *power.Share, at int64, iv *Interval) {
	h, last := ms.host, ms.host.received
	span, gained := sh.At-last.At, sh.Energy()-last.Energy()
	ms.surplus = AddSaturated(ms.surplus, max(0, -gained)) // a killed host counts it again
	gained = max(0, gained)
	te := tickEnergy{energy: gained, otherError: max(0, sh.Error-last.Error), quality: usage.Apportioned, hasIdle: true,
		misaligned: distance(span, iv.Elapsed) > iv.Elapsed/2}
	modelled := min(gained, max(0, sh.Modelled-last.Modelled))
	if !te.misaligned && ms.reason == OK && sh.Energy() > last.Energy() {
		ms.learn(meanPower(gained, span), iv)
	}
	if ms.surplus > 0 {
		usual, _ := ms.predict(iv)
		te.energy = max(gained-ms.surplus, min(gained, usual)/2)
		ms.surplus -= gained - te.energy
		te.otherError, te.misaligned = AddSaturated(te.otherError, gained-te.energy), true
		te.quality, modelled = usage.Modelled, te.energy
	}
	if modelled > 0 {
		te.quality = usage.Modelled
	}
	te.idle = MulDiv(min(gained, max(0, sh.Idle-last.Idle)), te.energy, gained)
	ms.latest, h.quality = te, te.quality
	h.book(te.energy, te.idle, te.otherError, modelled)
	h.interval = span
	ms.acceptShare(sh, at)
	ms.appendWindowShare()
}

// restartFrom starts over at a share.
func (ms *meterState) restartFrom(sh *power.Share, at int64) {
	ms.surplus = 0
	ms.host.booked, ms.host.interval = *sh, 0
	ms.host.quality = usage.Apportioned
	ms.acceptShare(sh, at)
}

// acceptShare makes a share the base of the next difference.
func (ms *meterState) acceptShare(sh *power.Share, at int64) {
	h := ms.host
	h.received, h.suspect = *sh, power.Share{}
	h.booked.Guest, h.booked.Epoch, h.booked.N, h.booked.At = sh.Guest, sh.Epoch, sh.N, sh.At
	ms.accept(reading{ok: true, at: at, value: sh.Energy()})
	ms.changedAt = at
}

// appendWindowShare records the booked share for the window.
func (ms *meterState) appendWindowShare() {
	ms.host.shares = usage.AddShare(ms.host.shares, &ms.host.booked)
}

// rejectShare ignores a share and books the model's energy.
func (ms *meterState) rejectShare(why Reason, iv *Interval) {
	ms.bookFailure(why, iv)
	ms.recordSubstitute()
}

// recordSubstitute adds the energy that a model booked in this tick to the booked share.
func (ms *meterState) recordSubstitute() {
	h := ms.host
	if h.substituted = h.received.Epoch != ""; h.substituted {
		h.book(ms.latest.energy, 0, ms.latest.otherError, ms.latest.energy)
	}
}

// recordCurveSubstitute adds the energy that a curve booked in this tick, as no model was trained,
// to the booked share.
func (m *Meters) recordCurveSubstitute(flows *[power.DomainLimit]tickEnergy) {
	for i := range m.meters {
		ms := &m.meters[i]
		if ms.host == nil || !ms.host.substituted {
			continue
		}
		for d := range flows {
			if !m.usesCurve(power.Domain(d)) {
				continue // shown by a meter
			}
			e := flows[d].energy
			ms.surplus, ms.outageSurplus = AddSaturated(ms.surplus, e), AddSaturated(ms.outageSurplus, e)
			ms.host.book(e, 0, AddSaturated(flows[d].classError, flows[d].otherError), e)
		}
	}
}

// book adds to the booked share, in uJ.
func (h *hostState) book(energy, idle, absError, modelled int64) {
	b := &h.booked
	b.Active, b.Idle = AddSaturated(b.Active, energy-idle), AddSaturated(b.Idle, idle)
	b.Error, b.Modelled = AddSaturated(b.Error, absError), AddSaturated(b.Modelled, modelled)
	h.windowEnergy = AddSaturated(h.windowEnergy, energy)
}

// receivingHost returns the state of the meter of the host's share, or nil if this machine never
// received a share.
func (m *Meters) receivingHost() *hostState {
	for i := range m.meters {
		if h := m.meters[i].host; h != nil && h.received.Epoch != "" {
			return h
		}
	}
	return nil
}

// BookedShare returns the host's share up to which this machine has booked, with the booked
// amounts. They exceed those of the share by the energy of a substituting model that is still to be
// deducted. It returns false if this machine never received a share.
func (m *Meters) BookedShare() (power.Share, bool) {
	if h := m.receivingHost(); h != nil {
		return h.booked, true
	}
	return power.Share{}, false
}

// TakeHandover returns the energy that the host gave this machine since the previous call, or
// false if there is no new share. The caller owns the shares.
func (m *Meters) TakeHandover() (usage.Handover, bool) {
	h := m.receivingHost()
	if h == nil {
		return usage.Handover{}, false
	}
	out := usage.Handover{Guest: h.booked.Guest, Opened: h.baseline, Shares: h.shares, Booked: h.windowEnergy}
	h.baseline, h.windowEnergy, h.shares = h.booked, 0, make([]power.Share, 0, len(h.shares))
	return out, len(out.Shares) > 0
}
