package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// assignDomains puts all energy into exactly one domain. What a meter above the parts
// shows beyond all that is inside it is energy of Rest.
//
// Where the parts show more, they stay, and what they showed too much is taken
// from Rest's next ticks, as no two meters show the same instant. That is at
// most one tick of the outer meter: parts that always show more are not late.
func (m *Meters) assignDomains(iv *Interval) (flows [power.DomainLimit]tickEnergy) {
	var inside tickEnergy
	for d := range flows {
		flows[d] = m.sumParts(power.Domain(d), iv)
		inside.add(flows[d])
	}
	// Accelerators are beside what a curve describes: a machine that has a meter of
	// them alone still draws the rest.
	bare := flows[power.Package].quality == usage.Absent && flows[power.DRAM].quality == usage.Absent
	rest := &flows[power.Rest]
	whole := inside.energy
	outer := tickEnergy{}
	for l := power.Board; l < power.LevelLimit; l++ {
		te := m.levelEnergy(l)
		if te.quality == usage.Absent {
			continue
		}
		m.ratios[l].add(whole, te.energy)
		whole, outer = max(whole, te.energy), te
		rest.add(tickEnergy{quality: te.quality, misaligned: te.misaligned})
	}
	switch {
	case outer.quality != usage.Absent:
		m.skew = min(AddSaturated(m.skew, whole-outer.energy), outer.energy)
		rest.energy = whole - inside.energy
		late := min(m.skew, rest.energy)
		rest.energy -= late
		m.skew -= late
		// It is a difference, so it is off by what either may be.
		rest.classError = AddSaturated(outer.classError, inside.classError)
		rest.otherError = AddSaturated(outer.otherError, inside.otherError)
		rest.add(tickEnergy{quality: inside.quality, misaligned: inside.misaligned})
		rest.hasIdle, rest.idle = outer.hasIdle, min(outer.idle, rest.energy)
	case bare && len(m.config.Curve.Points) > 0:
		c := &m.config.Curve
		e := energyOver(CurvePower(c, iv.Load), iv.runningTime())
		flows[c.Domain] = tickEnergy{energy: e, classError: MulDiv(e, c.ErrorPPM, power.PPM), quality: usage.Modelled}
	}
	m.usedCurve = outer.quality == usage.Absent && bare
	return flows
}

// usesCurve reports whether a domain went by the curve in the latest tick.
func (m *Meters) usesCurve(d power.Domain) bool { return m.usedCurve && d == m.config.Curve.Domain }

// sumParts returns what the meters of a domain's parts show. Where one of several
// shows nothing and never did, it is taken to have drawn what the others did on
// average: the part is there, and what is booked must not be too little without
// saying so. That may be off by all of it.
func (m *Meters) sumParts(d power.Domain, iv *Interval) (te tickEnergy) {
	var shown, missing int64
	for i := range m.meters {
		ms := &m.meters[i]
		switch {
		case ms.Level != power.Part || ms.Domain != d:
		case ms.latest.quality == usage.Absent:
			missing++
		default:
			te.add(ms.latest)
			shown++
		}
	}
	if shown > 0 && missing > 0 && iv.Elapsed > 0 {
		e := MulDiv(te.energy, missing, shown)
		te.add(tickEnergy{energy: e, otherError: e, quality: usage.Modelled, misaligned: true})
	}
	return te
}

// levelEnergy returns what the meters of a level show. Those of one origin add up, as
// two power supplies do. Of several origins, which all show the same, the one of
// the best class counts, and one that can be read before one that cannot. One that
// shows nothing and never did adds nothing, as a supply may be a spare, but the sum
// may be off by what the others showed on average.
func (m *Meters) levelEnergy(l power.Level) tickEnergy {
	var sums [power.OriginLimit]tickEnergy
	var class, shown, missing [power.OriginLimit]int64
	for i := range m.meters {
		switch ms := &m.meters[i]; {
		case ms.Level != l:
		case ms.latest.quality == usage.Absent:
			missing[ms.From]++
		default:
			sums[ms.From].add(ms.latest)
			class[ms.From] = max(class[ms.From], ms.ErrorPPM)
			shown[ms.From]++
		}
	}
	best := 0
	for o := range sums {
		if shown[o] > 0 && missing[o] > 0 {
			sums[o].add(tickEnergy{otherError: MulDiv(sums[o].energy, missing[o], shown[o]), quality: usage.Modelled, misaligned: true})
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
	return roundToInt(r.inside / r.meter * power.PPM), true
}
