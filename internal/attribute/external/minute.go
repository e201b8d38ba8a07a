package external

import (
	"math/big"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

// A MeterMinute is what a meter showed in one minute.
type MeterMinute struct {
	Minute int64
	Energy int64 // uJ
	Error  int64 // by how much that may be off, uJ
	// Reason is energy.OK if the meter can be used. Otherwise Energy is 0 and has no meaning.
	Reason energy.Reason
}

// Minutes returns the energy that the meter showed in each minute, in order of time: from is the
// first minute, and the last one is before the first undecided minute. A minute is undecided while
// samples for it may still arrive. Samples are in rising order of time. If no sample is at or
// before the start of a minute, the meter is energy.Unreadable in it.
//
// Power between two samples is interpolated linearly. The true energy may differ by half the
// difference of the samples: the error includes that. The energy between two values of a counter is
// spread evenly from one change to the next. The error does not include the assignment of energy to
// either side of a minute's edge: an excess in one minute is missing in its neighbor. Whatever the
// edges, the minutes sum to the energy between two samples.
func Minutes(m *Meter, samples []Sample, from int64, now time.Time) (out []MeterMinute) {
	ps := m.segments(samples)
	end := m.decidedUntil(samples, ps, now.UnixNano())
	for i, k := 0, from; MinuteStart(k+1) <= end; k++ {
		a, b := MinuteStart(k), MinuteStart(k+1)
		for i < len(ps) && ps[i].to.At <= a {
			i++
		}
		v := MeterMinute{Minute: k, Reason: energy.Unreadable}
		if i < len(ps) && ps[i].from.At <= a && ps[len(ps)-1].to.At >= b {
			v = m.energyIn(k, ps[i:])
		}
		out = append(out, v)
	}
	return out
}

// energyIn is a minute that pieces cover, the first of which holds its start.
func (m *Meter) energyIn(k int64, ps []segment) MeterMinute {
	v := MeterMinute{Minute: k}
	a, b := MinuteStart(k), MinuteStart(k+1)
	for _, p := range ps {
		if p.from.At >= b {
			break
		}
		if p.reason != energy.OK {
			return MeterMinute{Minute: k, Reason: p.reason}
		}
		c, d := max(a, p.from.At), min(b, p.to.At)
		v.Energy += m.energyUntil(p, d) - m.energyUntil(p, c)
		if m.Kind == power.Power {
			v.Error = energy.AddSaturated(v.Error, energy.MulDiv(max(p.to.Value-p.from.Value, p.from.Value-p.to.Value)/2, d-c, second))
		}
	}
	v.Error = energy.AddSaturated(v.Error, energy.MulDiv(v.Energy, m.ErrorPPM, power.PPM))
	return v
}

// decidedUntil is the instant up to which no later sample changes anything.
func (m *Meter) decidedUntil(samples []Sample, ps []segment, now int64) int64 {
	var last, kept int64
	for i := range samples {
		if s := &samples[i]; m.isPossible(s) {
			if kept == 0 {
				kept = s.At
			}
			last = s.At
		}
	}
	if len(ps) > 0 {
		kept = ps[len(ps)-1].to.At
	}
	if stale := int64(m.Stale); now-last <= stale {
		return max(kept, now-2*stale)
	}
	return now // the next one would come too late
}

// NeededFrom is the instant from which on samples are needed for the minutes from one on.
func NeededFrom(m *Meter, samples []Sample, from int64) (at int64) {
	at = MinuteStart(from)
	if len(samples) > 0 {
		at = min(at, samples[0].At)
	}
	for _, p := range m.segments(samples) {
		if p.to.At > MinuteStart(from) {
			break
		}
		at = p.to.At
	}
	return at
}

// A segment is the time between two samples that are used, one after the other.
type segment struct {
	from, to Sample
	energy   int64 // uJ, of an Energy meter
	reason   energy.Reason
}

// energyUntil is the energy of a piece up to an instant in it, in uJ.
func (m *Meter) energyUntil(p segment, at int64) int64 {
	t, whole := at-p.from.At, p.to.At-p.from.At
	switch {
	case m.Kind == power.Energy:
		return energy.MulDiv(p.energy, t, whole)
	case t == whole:
		return energy.MulDiv(p.from.Value+p.to.Value, whole, 2*second)
	}
	// (2 P0 T t + (P1-P0) t^2) / 2T, in one piece so that it never falls.
	x, y := big.NewInt(t), big.NewInt(p.to.Value-p.from.Value)
	y.Mul(y.Mul(y, x), x)
	x.Mul(x.Mul(x, big.NewInt(2*whole)), big.NewInt(p.from.Value))
	return x.Div(x.Add(x, y), y.Mul(big.NewInt(2*whole), big.NewInt(second))).Int64()
}

// segments judges the samples. Between two pieces there is no time.
func (m *Meter) segments(samples []Sample) (ps []segment) {
	var last, read, doubt *Sample // the last one used, the last one read, and one that cannot follow from last
	add := func(s *Sample, reason energy.Reason) {
		var e int64
		if m.Kind == power.Energy {
			e, _ = m.gainBetween(last, s)
		}
		if reason == energy.OK && s.At-last.At > 2*int64(m.Stale) {
			reason = energy.Unreadable
		}
		ps = append(ps, segment{*last, *s, e, reason})
		last, doubt = s, nil
	}
	for i := range samples {
		s := &samples[i]
		switch {
		case !m.isPossible(s):
			continue
		case last == nil:
			last = s
		case s.At-read.At > int64(m.Stale):
			add(s, energy.Unreadable)
		case m.Kind == power.Power:
			add(s, energy.OK)
		default:
			switch _, why := m.gainBetween(last, s); {
			case why == energy.OK && s.Value == last.Value && s.At-last.At < int64(m.Stale):
				doubt = nil // it moves in steps: the next change tells
			case why == energy.OK:
				add(s, energy.OK)
			case doubt == nil:
				doubt = s
			default:
				_, before := m.gainBetween(last, doubt)
				if _, again := m.gainBetween(doubt, s); again != energy.OK {
					doubt = s
					break
				}
				// It really is there now: counting goes on from there.
				add(doubt, before)
				if s.Value != last.Value {
					add(s, energy.OK)
				}
			}
		}
		read = s
	}
	return ps
}

// isPossible reports whether the meter can show this at all.
func (m *Meter) isPossible(s *Sample) bool {
	switch {
	case s.Value < 0:
		return false
	case m.Kind == power.Power:
		return s.Value <= m.MaxPower
	}
	return m.Wrap == 0 || s.Value <= m.Wrap
}

// gainBetween returns the gain of a counter between two samples, in uJ, or 0 and the reason if the
// gain cannot be determined.
func (m *Meter) gainBetween(from, to *Sample) (int64, energy.Reason) {
	possible := energy.MulDiv(m.MaxPower, to.At-from.At, second)
	return energy.CounterGain(from.Value, to.Value, m.Wrap, possible, possible)
}
