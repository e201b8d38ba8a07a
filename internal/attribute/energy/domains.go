package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// assignDomains puts all energy into exactly one domain. The energy that an outer meter shows
// beyond the parts inside it goes to Rest.
//
// If the parts show more than the outer meter, they keep their energy, and the excess is deducted
// from Rest in the next ticks, as meters do not show the same instant. The excess is limited to what
// the outer meter shows when it moves, which a slow one does not in each tick: parts that always show
// more are not late.
func (m *Meters) assignDomains(iv *Interval) (flows [power.DomainLimit]tickEnergy) {
	var inside tickEnergy
	for d := range flows {
		flows[d] = m.sumParts(power.Domain(d))
		inside.add(flows[d])
	}
	// Curves exclude accelerators: a machine with meters of them only still draws the rest.
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
		if outer.energy > 0 {
			m.outer = outer.energy
		}
		m.skew = min(AddSaturated(m.skew, whole-outer.energy), m.outer)
		rest.energy = whole - inside.energy
		late := min(m.skew, rest.energy)
		rest.energy -= late
		m.skew -= late
		// It is a difference, so both errors count.
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

// usesCurve reports whether a domain used the curve in the latest tick.
func (m *Meters) usesCurve(d power.Domain) bool { return m.usedCurve && d == m.config.Curve.Domain }

// sumParts sums the meters of a domain's parts. A part whose meter never worked is assumed to have
// drawn the average of the others, with an error of all of it: the part exists, and the sum must
// not silently be too small.
func (m *Meters) sumParts(d power.Domain) (te tickEnergy) {
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
	if shown > 0 && missing > 0 {
		e := MulDiv(te.energy, missing, shown)
		te.add(tickEnergy{energy: e, otherError: e, quality: usage.Modelled, misaligned: true})
	}
	return te
}

// levelEnergy sums the meters of a level. Meters of one origin add up, like two power supplies.
// Origins are alternatives that show the same energy: the one of the best class counts, a readable
// one before an unreadable one. A meter that never worked adds nothing, as a supply may be a spare,
// but the error includes the average of the others.
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
	var best int
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
		best = int(power.Host) // it is what this machine has to book
	}
	return sums[best]
}

// A ratio compares the energy inside a level with its meter, over the last ten minutes or so.
type ratio struct{ inside, meter float64 }

func (r *ratio) add(inside, meter int64) {
	const keep = 1 - 1./600
	r.inside = r.inside*keep + float64(inside)
	r.meter = r.meter*keep + float64(meter)
}

// Ratio returns how much of the energy shown by the meters of a level is also shown inside it, in
// ppm; false if there is nothing to compare. A value well above 1e6 means that one of the two is
// wrong.
func (m *Meters) Ratio(l power.Level) (int64, bool) {
	r := &m.ratios[l]
	if r.meter == 0 || r.inside == 0 {
		return 0, false
	}
	return roundToInt(r.inside / r.meter * power.PPM), true
}
