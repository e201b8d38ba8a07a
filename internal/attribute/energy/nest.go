package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// nest puts all energy into exactly one domain. What a meter above the parts
// shows beyond all that is inside it is energy of Rest.
//
// Where the parts show more, they stay, and what they showed too much is taken
// from Rest's next ticks, as no two meters show the same instant. That is at
// most one tick of the outer meter: parts that always show more are not late.
func (m *Meters) nest(s *Span) (flows [power.DomainLimit]flow) {
	var inside flow
	for d := range flows {
		flows[d] = m.parts(power.Domain(d), s)
		inside.add(flows[d])
	}
	// Accelerators are beside what a curve describes: a machine that has a meter of
	// them alone still draws the rest.
	bare := flows[power.Package].quality == usage.Absent && flows[power.DRAM].quality == usage.Absent
	rest := &flows[power.Rest]
	whole := inside.energy
	outer := flow{}
	for l := power.Board; l < power.LevelLimit; l++ {
		f := m.level(l)
		if f.quality == usage.Absent {
			continue
		}
		m.ratios[l].add(whole, f.energy)
		whole, outer = max(whole, f.energy), f
		rest.add(flow{quality: f.quality, blurred: f.blurred})
	}
	switch {
	case outer.quality != usage.Absent:
		m.carry = min(plus(m.carry, whole-outer.energy), outer.energy)
		rest.energy = whole - inside.energy
		late := min(m.carry, rest.energy)
		rest.energy -= late
		m.carry -= late
		// It is a difference, so it is off by what either may be.
		rest.class = plus(outer.class, inside.class)
		rest.error = plus(outer.error, inside.error)
		rest.add(flow{quality: inside.quality, blurred: inside.blurred})
		rest.split, rest.idle = outer.split, min(outer.idle, rest.energy)
	case bare && len(m.config.Curve.Points) > 0:
		c := &m.config.Curve
		e := over(At(c, s.Load), s.awake())
		flows[c.Domain] = flow{energy: e, class: share(e, c.ErrorPPM, power.PPM), quality: usage.Modelled}
	}
	m.guessed = outer.quality == usage.Absent && bare
	return flows
}

// guesses reports whether a domain went by the curve in the latest tick.
func (m *Meters) guesses(d power.Domain) bool { return m.guessed && d == m.config.Curve.Domain }

// parts returns what the meters of a domain's parts show. Where one of several
// shows nothing and never did, it is taken to have drawn what the others did on
// average: the part is there, and what is booked must not be too little without
// saying so. That may be off by all of it.
func (m *Meters) parts(d power.Domain, s *Span) (f flow) {
	var shown, missing int64
	for i := range m.gauges {
		g := &m.gauges[i]
		switch {
		case g.Level != power.Part || g.Domain != d:
		case g.flow.quality == usage.Absent:
			missing++
		default:
			f.add(g.flow)
			shown++
		}
	}
	if shown > 0 && missing > 0 && s.Elapsed > 0 {
		e := share(f.energy, missing, shown)
		f.add(flow{energy: e, error: e, quality: usage.Modelled, blurred: true})
	}
	return f
}

// level returns what the meters of a level show. Those of one origin add up, as
// two power supplies do. Of several origins, which all show the same, the one of
// the best class counts, and one that can be read before one that cannot. One that
// shows nothing and never did adds nothing, as a supply may be a spare, but the sum
// may be off by what the others showed on average.
func (m *Meters) level(l power.Level) flow {
	var sums [power.OriginLimit]flow
	var class, shown, missing [power.OriginLimit]int64
	for i := range m.gauges {
		switch g := &m.gauges[i]; {
		case g.Level != l:
		case g.flow.quality == usage.Absent:
			missing[g.From]++
		default:
			sums[g.From].add(g.flow)
			class[g.From] = max(class[g.From], g.ErrorPPM)
			shown[g.From]++
		}
	}
	best := 0
	for o := range sums {
		if shown[o] > 0 && missing[o] > 0 {
			sums[o].add(flow{error: share(sums[o].energy, missing[o], shown[o]), quality: usage.Modelled, blurred: true})
		}
		switch a, b := &sums[o], &sums[best]; {
		case a.quality == usage.Absent:
		case b.quality == usage.Absent, a.quality < b.quality, a.quality == b.quality && class[o] < class[best]:
			best = o
		}
	}
	if sums[power.Host].quality != usage.Absent {
		best = int(power.Host) // it says what this machine is to book
	}
	return sums[best]
}

// A ratio is what was seen inside a level and what its meter showed, over the
// last ten minutes or so.
type ratio struct{ inside, meter float64 }

func (r *ratio) add(inside, meter int64) {
	const keep = 1 - 1./600
	r.inside = r.inside*keep + float64(inside)
	r.meter = r.meter*keep + float64(meter)
}

// Ratio returns how much of what the meters of a level show was seen by those
// inside it, in ppm; false where there is nothing to compare. Well above the
// whole, one of the two is wrong.
func (m *Meters) Ratio(l power.Level) (int64, bool) {
	r := &m.ratios[l]
	if r.meter == 0 || r.inside == 0 {
		return 0, false
	}
	return rounded(r.inside / r.meter * power.PPM), true
}
