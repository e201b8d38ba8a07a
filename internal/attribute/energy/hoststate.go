package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A hostState is the state of a meter that shows what a host gave this machine.
type hostState struct {
	received power.Share // the latest accepted share; no epoch before the first
	// suspect is a share that cannot follow received. If the next share follows it, the host's
	// state really changed.
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

// minStallTime is how long in ns a share may stay unchanged: a host updates it each second. A host
// with longer ticks gets three of them, up to maxStallTime.
const minStallTime, maxStallTime = 5 * second, 180 * second

func (h *hostState) stallTime() int64 { return max(minStallTime, min(3*h.interval, maxStallTime)) }

// maxSetback is the maximum time in ns of given energy that a killed host may forget. If more is
// missing it starts over.
const maxSetback = 3600 * second

// isValidShare reports whether a share's numbers are in range.
func isValidShare(s *power.Share) bool {
	const most = math.MaxInt64 / 4 // so that sums of them fit
	return s.Epoch != "" && min(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) >= 0 &&
		max(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) <= most && s.Modelled <= s.Energy()
}

// takeHost takes the readings of a host's share at the end of a tick. Only the later of the two
// counts, without interpolation: the guest books the energy that the host booked up to a tick of the host.
// A reading without a share, from another tool, is an ordinary counter.
func (ms *meterState) takeHost(before, after *power.Reading, iv *Interval) reading {
	h, r := ms.host, after
	if r == nil || r.Err != "" {
		r = before
	}
	h.substituted = false
	switch {
	case r == nil || r.Err != "" || r.Share == nil:
		if r != nil && r.Err == "" && h.received.Epoch != "" {
			ms.seen, ms.surplus, h.received = false, 0, power.Share{} // its counting base changed
		}
		plain := midpoint(ms.Kind, before, after)
		ms.update(plain, iv)
		if !plain.ok {
			ms.bookSubstitute()
		}
		return plain
	case h.received.Epoch == "":
		ms.seen = false
	}
	ms.latest = tickEnergy{}
	ms.takeShare(r.Share, r.At, iv)
	return reading{ok: true, at: r.At, value: r.Share.Energy(), shown: r.Share.Energy()}
}

// takeShare books the difference of a share to the last accepted one.
func (ms *meterState) takeShare(sh *power.Share, at int64, iv *Interval) {
	h := ms.host
	switch last := &h.received; {
	case !isValidShare(sh):
		ms.rejectShare(Jumped, iv)
	case last.Epoch != sh.Epoch || last.Guest != sh.Guest, sh.N > last.N && ms.lostTooMuch(last, sh):
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

// checkStep checks whether a share can follow an earlier one, regardless of its idle part. It uses
// the host's time, since a suspended machine is given energy too.
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

// checkFollows checks whether a share can follow an earlier one. After a host was killed both parts
// may be less.
func (ms *meterState) checkFollows(from, to *power.Share) Reason {
	active, idle := to.Active-from.Active, to.Idle-from.Idle
	if active < 0 && idle > 0 || active > 0 && idle < 0 {
		return WentBack
	}
	return ms.checkStep(from, to)
}

// lostTooMuch reports whether a share is so much less than before that a killed host does not
// explain it. A machine that drew next to nothing so far may have drawn a watt.
func (ms *meterState) lostTooMuch(from, to *power.Share) bool {
	return from.Energy()-to.Energy() > energyOver(max(ms.likelyMaxPower(), 1e6), maxSetback)
}

// bookShare books the difference of a share to the last one. It deducts what a model booked too
// much before, but leaves at least half of the tick's expected energy.
func (ms *meterState) bookShare(sh *power.Share, at int64, iv *Interval) {
	h, last := ms.host, ms.host.received
	span, gained := sh.At-last.At, sh.Energy()-last.Energy()
	ms.surplus = AddSaturated(ms.surplus, max(0, -gained)) // the host was killed
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
	ms.bookSubstitute()
}

// bookSubstitute records that the tick was booked by a model.
func (ms *meterState) bookSubstitute() {
	h := ms.host
	if h.substituted = h.received.Epoch != ""; h.substituted {
		h.book(ms.latest.energy, 0, ms.latest.otherError, ms.latest.energy)
	}
}

// bookCurveSubstitute records that a curve substituted, if no model was trained.
func (m *Meters) bookCurveSubstitute(flows *[power.DomainLimit]tickEnergy) {
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

// book adds to the booked amounts, in uJ.
func (h *hostState) book(energy, idle, off, modelled int64) {
	b := &h.booked
	b.Active, b.Idle = AddSaturated(b.Active, energy-idle), AddSaturated(b.Idle, idle)
	b.Error, b.Modelled = AddSaturated(b.Error, off), AddSaturated(b.Modelled, modelled)
	h.windowEnergy = AddSaturated(h.windowEnergy, energy)
}

// hostState returns the state of the meter for the host's share, or nil if there is none or it
// never gave anything.
func (m *Meters) hostState() *hostState {
	for i := range m.meters {
		if h := m.meters[i].host; h != nil && h.received.Epoch != "" {
			return h
		}
	}
	return nil
}

// BookedShare returns the host's share up to which this machine has booked, with the booked
// amounts: those of the share, except for energy of a substituting model that is still to be
// compensated. It returns false if no host gave anything.
func (m *Meters) BookedShare() (power.Share, bool) {
	if h := m.hostState(); h != nil {
		return h.booked, true
	}
	return power.Share{}, false
}

// TakeHandover returns what the host gave this machine since the previous call; false if there is
// nothing new. The caller owns the shares.
func (m *Meters) TakeHandover() (usage.Handover, bool) {
	h := m.hostState()
	if h == nil {
		return usage.Handover{}, false
	}
	out := usage.Handover{Guest: h.booked.Guest, Opened: h.baseline, Shares: h.shares, Booked: h.windowEnergy}
	h.baseline, h.windowEnergy, h.shares = h.booked, 0, make([]power.Share, 0, len(h.shares))
	return out, len(out.Shares) > 0
}
