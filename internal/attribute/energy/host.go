package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A handed is what is known of a meter that shows what a host gave this machine.
type handed struct {
	given power.Share // the latest that was taken; without an epoch before the first
	// doubt is one that cannot follow from given. Should the next one follow from it,
	// the host is really there now.
	doubt power.Share
	// booked is what was booked up to given: the same energy, unless a model stood in
	// for a while, or the host was killed and began again a little earlier. It is
	// that of given and what the gauge is ahead of it.
	booked  power.Share
	quality usage.Quality // of the latest share that was taken
	stood   bool          // in the latest tick a model stood in for what is shown later
	pace    int64         // ns between the two latest shares that were taken, by the host's time

	opened power.Share   // booked, when the window was opened
	shares []power.Share // booked, in the window
	energy int64         // booked in the window, uJ
}

// silence is for how long a share may stay as it is, in ns: a host gives one each
// second. One with longer ticks is given three of them, up to mostSilence.
const silence, mostSilence = 5 * second, 180 * second

func (h *handed) silence() int64 { return max(silence, min(3*h.pace, mostSilence)) }

// setback is for how long, in ns, a host that was killed may at most have given
// what it does not know of when it is back. Where more is missing it counts anew.
const setback = 3600 * second

// sound says whether a share's numbers are such as there are.
func sound(s *power.Share) bool {
	const most = math.MaxInt64 / 4 // so that sums of them fit
	return s.Epoch != "" && min(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) >= 0 &&
		max(s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled) <= most && s.Modelled <= s.Energy()
}

// take takes the readings of a host's share at the end of a tick. The later one of
// the two counts, and nothing between them: what is booked is what the host booked
// up to one of its own ticks. Where there is no share with it, as of another tool,
// it is a counter like any other.
func (g *gauge) take(before, after *power.Reading, s *Span) reading {
	h, r := g.host, after
	if r == nil || r.Err != "" {
		r = before
	}
	h.stood = false
	switch {
	case r == nil || r.Err != "" || r.Share == nil:
		if r != nil && r.Err == "" && h.given.Epoch != "" {
			g.seen, g.ahead, h.given = false, 0, power.Share{} // it counts from elsewhere now
		}
		plain := between(g.Kind, before, after)
		g.tick(plain, s)
		if !plain.ok {
			g.lend()
		}
		return plain
	case h.given.Epoch == "":
		g.seen = false
	}
	g.flow = flow{}
	g.shown(r.Share, r.At, s)
	return reading{ok: true, at: r.At, value: r.Share.Energy(), shown: r.Share.Energy()}
}

// shown books what a share shows beyond the one that was taken last.
func (g *gauge) shown(sh *power.Share, at int64, s *Span) {
	h := g.host
	switch last := &h.given; {
	case !sound(sh):
		g.refuse(Jumped, s)
	case last.Epoch != sh.Epoch || last.Guest != sh.Guest, sh.N > last.N && g.lost(last, sh):
		g.model(s)
		if h.given.Epoch != "" {
			h.energy += g.flow.energy
		}
		g.countFrom(sh, at)
		g.note()
	case *sh == *last && at-g.moved <= h.silence():
		g.flow = flow{quality: h.quality, blurred: true, split: true}
		g.reason, h.doubt = Fine, power.Share{}
	case *sh == *last:
		g.refuse(Stalled, s)
	default:
		why := g.follows(last, sh)
		if why != Fine && h.doubt.Epoch == sh.Epoch && g.follows(&h.doubt, sh) == Fine {
			if g.step(last, sh) != Fine {
				g.countFrom(&h.doubt, at)
			}
			why = Fine
		}
		if why != Fine {
			g.refuse(why, s)
			h.doubt = *sh
			return
		}
		g.receive(sh, at, s)
	}
}

// step says whether all that a share shows can follow from one before it, whatever
// is idle of it. It goes by the host's time: a machine that stood still meanwhile was
// given energy all the same.
func (g *gauge) step(from, to *power.Share) Reason {
	span := to.At - from.At
	possible := plus(over(g.bound(), plus(span, g.Every)), g.Step)
	switch {
	case to.N <= from.N || span <= 0 || g.lost(from, to):
		return Back
	case to.Energy()-from.Energy() > possible, to.Error-from.Error > possible:
		return Jumped
	}
	return Fine
}

// follows says whether a share can follow from one before it. Of a host that was
// killed both parts may be less than before.
func (g *gauge) follows(from, to *power.Share) Reason {
	active, idle := to.Active-from.Active, to.Idle-from.Idle
	if active < 0 && idle > 0 || active > 0 && idle < 0 {
		return Back
	}
	return g.step(from, to)
}

// lost says whether a host knows of so much less at a share that being killed does
// not explain it. A machine that drew next to nothing so far may have drawn a watt.
func (g *gauge) lost(from, to *power.Share) bool {
	return from.Energy()-to.Energy() > over(max(g.likely(), 1e6), setback)
}

// receive books what a share shows beyond the last one. What a model booked too
// much before is taken off, but for half of what the tick should have.
func (g *gauge) receive(sh *power.Share, at int64, s *Span) {
	h, last := g.host, g.host.given
	span, gained := sh.At-last.At, sh.Energy()-last.Energy()
	if gained < 0 { // the host was killed
		g.ahead = plus(g.ahead, -gained)
		gained = 0
	}
	f := flow{energy: gained, error: max(0, sh.Error-last.Error), quality: usage.Apportioned, split: true,
		blurred: distance(span, s.Elapsed) > s.Elapsed/2}
	modelled := min(gained, max(0, sh.Modelled-last.Modelled))
	if !f.blurred && g.reason == Fine && sh.Energy() > last.Energy() {
		g.learn(mean(gained, span), s)
	}
	if g.ahead > 0 {
		usual, _ := g.expect(s)
		f.energy = max(gained-g.ahead, min(gained, usual)/2)
		g.ahead -= gained - f.energy
		f.error, f.blurred = plus(f.error, gained-f.energy), true
		f.quality, modelled = usage.Modelled, f.energy
	}
	if modelled > 0 {
		f.quality = usage.Modelled
	}
	f.idle = share(min(gained, max(0, sh.Idle-last.Idle)), f.energy, max(1, gained))
	g.flow, h.quality = f, f.quality
	h.book(f.energy, f.idle, f.error, modelled)
	h.pace = span
	g.adoptShare(sh, at)
	g.note()
}

// countFrom begins anew at a share.
func (g *gauge) countFrom(sh *power.Share, at int64) {
	g.ahead = 0
	g.host.booked, g.host.pace = *sh, 0
	g.host.quality = usage.Apportioned
	g.adoptShare(sh, at)
}

// adoptShare counts from a share on.
func (g *gauge) adoptShare(sh *power.Share, at int64) {
	h := g.host
	h.given, h.doubt = *sh, power.Share{}
	h.booked.Guest, h.booked.Epoch, h.booked.N, h.booked.At = sh.Guest, sh.Epoch, sh.N, sh.At
	g.adopt(reading{ok: true, at: at, value: sh.Energy()})
	g.moved = at
}

// note remembers for the window up to where it is booked.
func (g *gauge) note() {
	g.host.shares = usage.AddShare(g.host.shares, &g.host.booked)
}

// refuse does not take a share, and books what the law says.
func (g *gauge) refuse(why Reason, s *Span) {
	g.fail(why, s)
	g.lend()
}

// lend notes that what was booked in the tick is a model's.
func (g *gauge) lend() {
	h := g.host
	if h.stood = h.given.Epoch != ""; h.stood {
		h.book(g.flow.energy, 0, g.flow.error, g.flow.energy)
	}
}

// lendGuess notes that a curve stood in, where nothing was learned.
func (m *Meters) lendGuess(flows *[power.DomainLimit]flow) {
	for i := range m.gauges {
		g := &m.gauges[i]
		if g.host == nil || !g.host.stood {
			continue
		}
		for d := range flows {
			if !m.guesses(power.Domain(d)) {
				continue // a meter shows it
			}
			e := flows[d].energy
			g.ahead, g.lent = plus(g.ahead, e), plus(g.lent, e)
			g.host.book(e, 0, plus(flows[d].class, flows[d].error), e)
		}
	}
}

// book adds to what was booked, in uJ.
func (h *handed) book(energy, idle, off, modelled int64) {
	b := &h.booked
	b.Active, b.Idle = plus(b.Active, energy-idle), plus(b.Idle, idle)
	b.Error, b.Modelled = plus(b.Error, off), plus(b.Modelled, modelled)
	h.energy = plus(h.energy, energy)
}

// handed returns the gauge that shows what a host gave this machine; nil where
// there is none, or it gave nothing yet.
func (m *Meters) handed() *handed {
	for i := range m.gauges {
		if h := m.gauges[i].host; h != nil && h.given.Epoch != "" {
			return h
		}
	}
	return nil
}

// Booked returns up to which of its host's shares this machine has booked, and the
// amounts that it booked: those of the share, unless a model stood in for a while and
// that is not worked off. It is false where no host gave anything.
func (m *Meters) Booked() (power.Share, bool) {
	if h := m.handed(); h != nil {
		return h.booked, true
	}
	return power.Share{}, false
}

// Handover returns what the host gave this machine since the call before; false
// where that is nothing new. The shares are the caller's.
func (m *Meters) Handover() (usage.Handover, bool) {
	h := m.handed()
	if h == nil {
		return usage.Handover{}, false
	}
	out := usage.Handover{Guest: h.booked.Guest, Opened: h.opened, Shares: h.shares, Booked: h.energy}
	h.opened, h.energy, h.shares = h.booked, 0, make([]power.Share, 0, len(h.shares))
	return out, len(out.Shares) > 0
}
