package energy

import (
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/power"
)

// nest puts all energy into exactly one domain. What a meter above the parts
// shows beyond all that is inside it is energy of Rest.
//
// Where the parts show more, they stay, and what they showed too much is taken
// from Rest's next ticks, as no two meters show the same instant. That is at
// most one tick of the outer meter: parts that always show more are not late.
func (m *Meters) nest(s *Span) (flows [power.DomainLimit]flow) {
	var inside flow
	for i := range m.gauges {
		if g := &m.gauges[i]; g.Level == power.Part {
			flows[g.Domain].add(g.flow)
			inside.add(g.flow)
		}
	}
	rest := &flows[power.Rest]
	whole := inside.energy
	outer := flow{}
	for l := power.Board; l < power.LevelLimit; l++ {
		f := m.level(l)
		if f.quality == meter.Absent {
			continue
		}
		m.ratios[l].add(whole, f.energy)
		whole, outer = max(whole, f.energy), f
		rest.add(flow{quality: f.quality, blurred: f.blurred})
	}
	switch {
	case outer.quality != meter.Absent:
		m.carry = min(plus(m.carry, whole-outer.energy), outer.energy)
		rest.energy = whole - inside.energy
		late := min(m.carry, rest.energy)
		rest.energy -= late
		m.carry -= late
		// It is a difference, so it is off by what either may be.
		rest.class = plus(outer.class, inside.class)
		rest.error = plus(outer.error, inside.error)
		rest.add(flow{quality: inside.quality, blurred: inside.blurred})
	case inside.quality == meter.Absent && len(m.config.Curve.Points) > 0:
		c := &m.config.Curve
		e := over(At(c, s.Load), s.Elapsed)
		flows[c.Domain] = flow{energy: e, class: share(e, c.ErrorPPM, power.PPM), quality: meter.Modelled}
	}
	m.guessed = outer.quality == meter.Absent && inside.quality == meter.Absent
	return flows
}

// level returns what the meters of a level show. Those of one origin add up, as
// two power supplies do. Of several origins, which all show the same, the one of
// the best class counts, and one that can be read before one that cannot.
func (m *Meters) level(l power.Level) flow {
	var sums [power.OriginLimit]flow
	var class [power.OriginLimit]int64
	for i := range m.gauges {
		if g := &m.gauges[i]; g.Level == l {
			sums[g.From].add(g.flow)
			class[g.From] = max(class[g.From], g.ErrorPPM)
		}
	}
	best := 0
	for o := range sums {
		switch a, b := &sums[o], &sums[best]; {
		case a.quality == meter.Absent:
		case b.quality == meter.Absent, a.quality < b.quality, a.quality == b.quality && class[o] < class[best]:
			best = o
		}
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
