package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// absurd is the power in uW that a meter of unknown limits cannot show before it
// showed nearly as much: no CPU package or accelerator draws it, and absurdBox is
// what no machine in one box does.
const absurd, absurdBox = 5_000e6, 50_000e6

// A gauge is one meter and what is known of it.
type gauge struct {
	power.Meter
	law Law
	// seen says that a value was seen from which to count, at an instant;
	// half is by how much it may be off, as the meter went on while the
	// machine was read.
	seen            bool
	at, value, half int64
	highest         int64 // uW that it showed at most over a tick
	// doubt is a reading that cannot follow from value. Should the next one
	// follow from it, counting begins anew there.
	doubt reading
	// ahead is what was booked beyond what the counter showed, in uJ, as the law
	// stood in for it. Lent is how much of that is of the present outage, and
	// lentOff by how much that may be off.
	ahead, lent, lentOff int64
	moved                int64 // when its value last changed, ns
	reason               Reason
	since                int64   // of reason
	flow                 flow    // of the latest tick
	host                 *handed // of what a host gives; nil of all else
}

// A reading is what a meter showed around the instant of a snapshot.
type reading struct {
	ok              bool
	at, value, half int64
	shown           int64  // by the later of the two that value is between
	why             string // not ok
}

// A flow is the energy of a meter, or of several, in a tick.
type flow struct {
	energy  int64 // uJ
	class   int64 // uJ by which it may be off in proportion, as idle energy is too
	error   int64 // uJ by which it may be off besides
	quality usage.Quality
	blurred bool // it holds energy of before, or leaves some to later ticks
	// split says that idle is how much of energy is idle, as the meter shows both.
	split bool
	idle  int64
}

// add sums two flows; what is absent adds nothing.
func (f *flow) add(g flow) {
	f.energy = plus(f.energy, g.energy)
	f.class = plus(f.class, g.class)
	f.error = plus(f.error, g.error)
	f.quality = max(f.quality, g.quality)
	f.blurred = f.blurred || g.blurred
	f.idle, f.split = plus(f.idle, g.idle), f.split || g.split
}

// tick takes the reading at the end of a tick.
func (g *gauge) tick(r reading, s *Span) {
	g.flow = flow{}
	switch why := g.judge(r, s); {
	case why != Fine:
		g.fail(why, s)
	case !g.seen, g.Kind == power.Power && g.reason != Fine:
		// Energy is between two values. Before the first one of a meter that
		// was known already, the law stands in.
		g.model(s)
		g.adopt(r)
	case g.Kind == power.Power:
		g.sample(r, s)
	default:
		g.count(r, s)
	}
}

// judge says whether a reading can be what the meter should show.
func (g *gauge) judge(r reading, s *Span) Reason {
	switch {
	case !r.ok:
		return Gone
	case r.value < 0, g.Kind == power.Energy && g.Wrap > 0 && r.value > g.Wrap:
		return Jumped
	case g.Kind == power.Power && r.value > g.bound():
		return Jumped
	case g.Kind == power.Power:
		return g.frozen(r, s)
	case !g.seen:
		return Fine
	}
	_, why := g.gain(reading{at: g.at, value: g.value}, r)
	if why == Fine {
		return g.frozen(r, s)
	}
	if g.doubt.ok {
		if _, again := g.gain(g.doubt, r); again == Fine {
			// It really is there now. Where it was before says nothing any more.
			g.at, g.value, g.half = g.doubt.at, g.doubt.value, g.doubt.half
			g.ahead -= g.lent
			g.lent, g.lentOff = 0, 0
			return Fine
		}
	}
	g.doubt = r
	return why
}

// gain is the energy between two readings of a counter.
func (g *gauge) gain(from, to reading) (int64, Reason) {
	span := max(0, to.at-from.at)
	if g.Wrap > 0 && over(g.likely(), span) >= g.Wrap {
		return 0, Ambiguous
	}
	d := to.value - from.value
	back := d < 0
	if back {
		d += g.Wrap
	}
	switch possible := plus(over(g.bound(), span+g.Every), g.Step); {
	case back && (g.Wrap == 0 || d > possible):
		return 0, Back
	case d > possible:
		return 0, Jumped
	}
	return d, Fine
}

// bound is more than the meter can show, in uW.
func (g *gauge) bound() int64 {
	switch {
	case g.Most > 0:
		return g.Most
	case g.Level > power.Part:
		return max(absurdBox, share(g.highest, 20, 1))
	}
	return max(absurd, share(g.highest, 20, 1))
}

// likely is the most that it will show, in uW: before anything was seen, what
// the largest packages draw.
func (g *gauge) likely() int64 {
	switch {
	case g.Most > 0:
		return g.Most
	case g.highest > 0:
		return share(g.highest, 4, 1)
	}
	return 500e6
}

// frozen says whether a value that does not change should have: a counter, when
// the load at which it moved before would have moved it by several steps; a
// sensor, when it has stood for ten seconds while the load says something else.
func (g *gauge) frozen(r reading, s *Span) Reason {
	switch span := r.at - g.moved; {
	case r.value != g.value || !g.seen:
		return Fine
	case g.reason == Stalled:
		return Stalled
	case g.Kind == power.Power && span >= max(10*second, 10*g.Every) && g.astray(r, s),
		g.Kind == power.Energy && s.Load >= busy && span >= 2*g.Every && g.least(s) >= 4*max(1, g.Step):
		return Stalled
	}
	return Fine
}

// least is what a counter gains in a tick at least, by what was learned, in uJ.
func (g *gauge) least(s *Span) int64 {
	e, off := g.expect(s)
	return max(e-off, e/2)
}

// astray says whether a sensor shows what it showed before although the load says
// something else.
func (g *gauge) astray(r reading, s *Span) bool {
	if r.value != g.value || !g.law.Known() {
		return false
	}
	p, off := g.law.Power(fraction(s.Load))
	v := float64(r.value)
	return math.Abs(p-v) > off+.1*v+4*float64(g.Step)
}

// busy is the load in ppm from which on a meter is expected to move.
const busy = power.PPM / 100

// adopt counts from r on.
func (g *gauge) adopt(r reading) {
	if r.value != g.value || !g.seen {
		g.moved = r.at
	}
	g.seen, g.at, g.value, g.half = true, r.at, r.value, r.half
	g.doubt, g.reason = reading{}, Fine
	g.lent, g.lentOff = 0, 0
}

// count books what a counter gained.
//
// While the law stood in, more was booked than the counter showed. If it went on
// counting meanwhile, that much is taken off again: from this tick, and if that
// would leave less than half of what the tick should have, from the next ones
// too. So in the end what was booked is what it counted. Only if it gained what
// this tick alone would have it gain, and too little for the whole time, it
// stood still and goes on from there.
func (g *gauge) count(r reading, s *Span) {
	gained, _ := g.gain(reading{at: g.at, value: g.value}, r)
	if gained == 0 {
		// It moves in steps. The time until the next one counts from the last.
		g.flow = flow{error: g.Step, quality: usage.Measured, blurred: true}
		g.reason, g.doubt = Fine, reading{}
		return
	}
	usual, span := int64(0), r.at-g.at
	if g.ahead > 0 {
		var off int64
		usual, off = g.expect(s)
		all := plus(usual, g.lent)
		if g.lent >= usual/2 && gained <= plus(usual, off) && all-gained > max(off+g.lentOff, all/4) {
			g.ahead -= g.lent
			span = min(span, s.Elapsed)
		}
	}
	f := flow{energy: gained, quality: usage.Measured}
	f.error = plus(plus(g.half, r.half), plus(g.Step, over(mean(gained, span), g.Every/2)))
	switch {
	case g.ahead > 0:
		f.energy = max(gained-g.ahead, min(gained, usual)/2)
		g.ahead -= gained - f.energy
		f.error = plus(f.error, distance(f.energy, usual))
		f.quality, f.blurred = usage.Modelled, true
	case span > s.Elapsed+s.Elapsed/2:
		f.error = plus(f.error, gained-share(gained, s.Elapsed, span))
		f.blurred = true
	case g.reason == Fine:
		g.learn(mean(gained, span), s)
	}
	f.class = share(f.energy, g.ErrorPPM, power.PPM)
	g.flow = f
	g.adopt(r)
}

// sample books the power of a sensor: the trapezoid between two values, which
// what it did between them may miss by half their difference.
func (g *gauge) sample(r reading, s *Span) {
	ns := r.at - g.at - max(0, s.Asleep) // asleep it draws neither
	low, high := min(g.value, r.value), max(g.value, r.value)
	g.flow = flow{energy: over(low+(high-low)/2, ns), quality: usage.Measured,
		error: plus(over((high-low)/2, ns), over(g.Step, ns))}
	g.flow.class = share(g.flow.energy, g.ErrorPPM, power.PPM)
	if !g.astray(r, s) {
		g.learn(low+(high-low)/2, s)
	}
	g.adopt(r)
}

// learn remembers a power that was measured over a whole tick.
func (g *gauge) learn(uW int64, s *Span) {
	if s.teaches() { // in a shorter one a step of the meter would be a peak
		g.highest = max(g.highest, uW)
		g.law.Add(fraction(s.Load), float64(uW))
	}
}

// expect is what the law says that the meter shows for a tick, and by how much
// that may be off, in uJ: both 0 without a law.
func (g *gauge) expect(s *Span) (energy, off int64) {
	if !g.law.Known() {
		return 0, 0
	}
	p, o := g.law.Power(fraction(s.Load))
	return over(rounded(p), s.awake()), over(rounded(o), s.awake())
}

// fail books what the law says, as the meter cannot be used.
func (g *gauge) fail(why Reason, s *Span) {
	if g.reason == Fine {
		g.since = s.At - s.Elapsed
	}
	g.reason = why
	if g.model(s); g.Kind == power.Energy && g.seen {
		g.ahead = plus(g.ahead, g.flow.energy)
		g.lent = plus(g.lent, g.flow.energy)
		g.lentOff = plus(g.lentOff, g.flow.error)
	}
}

// model books what the law says. Without a law the meter is absent.
func (g *gauge) model(s *Span) {
	if e, off := g.expect(s); g.law.Known() {
		g.flow = flow{energy: e, error: off, class: share(e, g.ErrorPPM, power.PPM), quality: usage.Modelled}
	}
}

func distance(a, b int64) int64 { return max(a-b, b-a) }
