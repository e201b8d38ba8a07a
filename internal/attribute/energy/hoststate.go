package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A hostState is what is known of a meter that shows what a host gave this machine.
type hostState struct {
	received power.Share // the latest that was taken; without an epoch before the first
	// suspect is one that cannot follow from received. Should the next one follow from it,
	// the host is really there now.
	suspect power.Share
	// booked is what was booked up to received: the same energy, unless a model stood in
	// for a while, or the host was killed and began again a little earlier. It is
	// that of received and the meter's surplus.
	booked      power.Share
	quality     usage.Quality // of the latest share that was taken
	substituted bool          // in the latest tick a model stood in for what is shown later
	interval    int64         // ns between the two latest shares that were taken, by the host's time

	baseline     power.Share   // booked, when the window was opened
	shares       []power.Share // booked, in the window
	windowEnergy int64         // booked in the window, uJ
}

// minStallTime is for how long a share may stay as it is, in ns: a host gives one each
// second. One with longer ticks is given three of them, up to maxStallTime.
const minStallTime, maxStallTime = 5 * second, 180 * second

func (h *hostState) stallTime() int64 { return max(minStallTime, min(3*h.interval, maxStallTime)) }

// maxSetback is for how long, in ns, a host that was killed may at most have given
// what it does not know of when it is back. Where more is missing it counts anew.
const maxSetback = 3600 * second

// isValidShare says whether a share's numbers are such as there are.
func isValidShare(s *power.Share) bool {
	const most = math.MaxInt64 / 4 // so that sums of them fit
	return s.Epoch != "" && min(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) >= 0 &&
		max(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) <= most && s.Modelled <= s.Energy()
}

// takeHost takes the readings of a host's share at the end of a tick. The later one of
// the two counts, and nothing between them: what is booked is what the host booked
// up to one of its own ticks. Where there is no share with it, as of another tool,
// it is a counter like any other.
func (ms *meterState) takeHost(before, after *power.Reading, iv *Interval) reading {
	h, r := ms.host, after
	if r == nil || r.Err != "" {
		r = before
	}
	h.substituted = false
	switch {
	case r == nil || r.Err != "" || r.Share == nil:
		if r != nil && r.Err == "" && h.received.Epoch != "" {
			ms.seen, ms.surplus, h.received = false, 0, power.Share{} // it counts from elsewhere now
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

// takeShare books what a share shows beyond the one that was taken last.
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

// checkStep says whether all that a share shows can follow from one before it, whatever
// is idle of it. It goes by the host's time: a machine that stood still meanwhile was
// given energy all the same.
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

// checkFollows says whether a share can follow from one before it. Of a host that was
// killed both parts may be less than before.
func (ms *meterState) checkFollows(from, to *power.Share) Reason {
	active, idle := to.Active-from.Active, to.Idle-from.Idle
	if active < 0 && idle > 0 || active > 0 && idle < 0 {
		return WentBack
	}
	return ms.checkStep(from, to)
}

// lostTooMuch says whether a host knows of so much less at a share that being killed does
// not explain it. A machine that drew next to nothing so far may have drawn a watt.
func (ms *meterState) lostTooMuch(from, to *power.Share) bool {
	return from.Energy()-to.Energy() > energyOver(max(ms.likelyMaxPower(), 1e6), maxSetback)
}

// bookShare books what a share shows beyond the last one. What a model booked too
// much before is taken off, but for half of what the tick should have.
func (ms *meterState) bookShare(sh *power.Share, at int64, iv *Interval) {
	h, last := ms.host, ms.host.received
	span, gained := sh.At-last.At, sh.Energy()-last.Energy()
	if gained < 0 { // the host was killed
		ms.surplus = AddSaturated(ms.surplus, -gained)
		gained = 0
	}
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
	te.idle = MulDiv(min(gained, max(0, sh.Idle-last.Idle)), te.energy, max(1, gained))
	ms.latest, h.quality = te, te.quality
	h.book(te.energy, te.idle, te.otherError, modelled)
	h.interval = span
	ms.acceptShare(sh, at)
	ms.appendWindowShare()
}

// restartFrom begins anew at a share.
func (ms *meterState) restartFrom(sh *power.Share, at int64) {
	ms.surplus = 0
	ms.host.booked, ms.host.interval = *sh, 0
	ms.host.quality = usage.Apportioned
	ms.acceptShare(sh, at)
}

// acceptShare counts from a share on.
func (ms *meterState) acceptShare(sh *power.Share, at int64) {
	h := ms.host
	h.received, h.suspect = *sh, power.Share{}
	h.booked.Guest, h.booked.Epoch, h.booked.N, h.booked.At = sh.Guest, sh.Epoch, sh.N, sh.At
	ms.accept(reading{ok: true, at: at, value: sh.Energy()})
	ms.changedAt = at
}

// appendWindowShare remembers for the window up to where it is booked.
func (ms *meterState) appendWindowShare() {
	ms.host.shares = usage.AddShare(ms.host.shares, &ms.host.booked)
}

// rejectShare does not take a share, and books what the model says.
func (ms *meterState) rejectShare(why Reason, iv *Interval) {
	ms.bookFailure(why, iv)
	ms.bookSubstitute()
}

// bookSubstitute notes that what was booked in the tick is a model's.
func (ms *meterState) bookSubstitute() {
	h := ms.host
	if h.substituted = h.received.Epoch != ""; h.substituted {
		h.book(ms.latest.energy, 0, ms.latest.otherError, ms.latest.energy)
	}
}

// bookCurveSubstitute notes that a curve stood in, where nothing was learned.
func (m *Meters) bookCurveSubstitute(flows *[power.DomainLimit]tickEnergy) {
	for i := range m.meters {
		ms := &m.meters[i]
		if ms.host == nil || !ms.host.substituted {
			continue
		}
		for d := range flows {
			if !m.usesCurve(power.Domain(d)) {
				continue // a meter shows it
			}
			e := flows[d].energy
			ms.surplus, ms.outageSurplus = AddSaturated(ms.surplus, e), AddSaturated(ms.outageSurplus, e)
			ms.host.book(e, 0, AddSaturated(flows[d].classError, flows[d].otherError), e)
		}
	}
}

// book adds to what was booked, in uJ.
func (h *hostState) book(energy, idle, off, modelled int64) {
	b := &h.booked
	b.Active, b.Idle = AddSaturated(b.Active, energy-idle), AddSaturated(b.Idle, idle)
	b.Error, b.Modelled = AddSaturated(b.Error, off), AddSaturated(b.Modelled, modelled)
	h.windowEnergy = AddSaturated(h.windowEnergy, energy)
}

// hostState returns the state of the meter that shows what a host gave this machine; nil where
// there is none, or it gave nothing yet.
func (m *Meters) hostState() *hostState {
	for i := range m.meters {
		if h := m.meters[i].host; h != nil && h.received.Epoch != "" {
			return h
		}
	}
	return nil
}

// BookedShare returns up to which of its host's shares this machine has booked, and the
// amounts that it booked: those of the share, unless a model stood in for a while and
// that is not worked off. It is false where no host gave anything.
func (m *Meters) BookedShare() (power.Share, bool) {
	if h := m.hostState(); h != nil {
		return h.booked, true
	}
	return power.Share{}, false
}

// TakeHandover returns what the host gave this machine since the call before; false
// where that is nothing new. The shares are the caller's.
func (m *Meters) TakeHandover() (usage.Handover, bool) {
	h := m.hostState()
	if h == nil {
		return usage.Handover{}, false
	}
	out := usage.Handover{Guest: h.booked.Guest, Opened: h.baseline, Shares: h.shares, Booked: h.windowEnergy}
	h.baseline, h.windowEnergy, h.shares = h.booked, 0, make([]power.Share, 0, len(h.shares))
	return out, len(out.Shares) > 0
}
