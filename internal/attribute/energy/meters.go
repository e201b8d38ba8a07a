package energy

import (
	"slices"

	"mete.dev/mete/internal/model/power"
)

// A Config says what there is to measure with.
type Config struct {
	// Meters are those that are read; a reading names one by its index.
	Meters []power.Meter
	// Curve is what to go by while no meter shows anything. One without points
	// leaves all energy absent then.
	Curve power.Curve
	// Static is the power in uW that a domain draws when the machine does
	// nothing, where an operator says so; 0 is to be learned.
	Static [power.DomainLimit]int64
}

// Meters is a machine's meters with what was learned of them. Not for
// concurrent use.
type Meters struct {
	config       Config
	meters       []meterState
	domainModels [power.DomainLimit]PowerModel // of each domain's whole power
	skew         int64                         // uJ of parts beyond what holds them, not worked off
	ratios       [power.LevelLimit]ratio
	tick         Tick
	usedCurve    bool // the latest tick went by the curve
	simulated    bool // the meters are simulated: nobody measured what they show
}

// An Interval is the time of a tick, and what the machine did in it.
type Interval struct {
	At      int64 // of the snapshot at its end, ns of CLOCK_BOOTTIME
	Elapsed int64 // ns since the snapshot before; 0 for the first one
	// Suspended is for how much of Elapsed the machine was suspended, in ns. Meters
	// that went on counted that too; what it drew where they did not is not known,
	// so that no model and no curve stands in for it.
	Suspended int64
	Load      int64 // CPU time used, in ppm of the CPU time that there was
	CPUs      int   // online
}

// runningTime is for how long of the tick the machine ran, in ns.
func (iv *Interval) runningTime() int64 { return max(0, iv.Elapsed-max(0, iv.Suspended)) }

// isRepresentative says whether the tick shows what power belongs to a load: it is not
// too short for that, and not of a machine that was suspended.
func (iv *Interval) isRepresentative() bool {
	return iv.Elapsed >= second/10 && iv.Suspended <= iv.Elapsed/100
}

// A Tick is the energy of one tick. It is overwritten by the next one.
type Tick struct {
	Domain [power.DomainLimit]DomainEnergy
	Events []Event
}

// New returns the meters of a machine, of which nothing is known yet.
func New(c Config) *Meters {
	m := &Meters{config: c, meters: make([]meterState, len(c.Meters))}
	for i := range c.Meters {
		m.meters[i].Meter = c.Meters[i]
		m.simulated = m.simulated || c.Meters[i].From == power.Model
		if c.Meters[i].From == power.Host {
			m.meters[i].host = &hostState{}
		}
	}
	return m
}

// Tick books the time from the snapshot before to this one. Before and after
// are what the meters showed just before and just after the machine was read:
// the middle counts, and half the difference is part of the error. The first
// tick books nothing: it is where counting begins.
func (m *Meters) Tick(iv Interval, before, after []power.Reading) *Tick {
	m.tick.Events = m.tick.Events[:0]
	for i := range m.meters {
		ms := &m.meters[i]
		was, since := ms.reason, ms.failedSince
		awaited := ms.hasNeverReported()
		var r reading
		if b, a := findReading(before, i), findReading(after, i); ms.host != nil {
			r = ms.takeHost(b, a, &iv)
		} else {
			r = midpoint(ms.Kind, b, a)
			ms.update(r, &iv)
		}
		if ms.reason == was || awaited {
			continue
		}
		if was != OK {
			m.tick.Events = append(m.tick.Events, Event{Meter: ms.Name, Reason: was, From: since, To: iv.At})
		}
		if ms.reason != OK {
			m.tick.Events = append(m.tick.Events, Event{Meter: ms.Name, Reason: ms.reason, Detail: ms.describe(r, iv.At), From: ms.failedSince})
		}
	}
	flows := m.assignDomains(&iv)
	if m.usedCurve {
		m.bookCurveSubstitute(&flows)
	}
	for d := power.Package; d < power.DomainLimit; d++ {
		m.tick.Domain[d] = m.domainEnergy(d, flows[d], &iv)
	}
	return &m.tick
}

// Latest returns the latest tick. It is good until the next one.
func (m *Meters) Latest() *Tick { return &m.tick }

// findReading returns the reading of a meter, nil where there is none.
func findReading(rs []power.Reading, meter int) *power.Reading {
	if meter < len(rs) && rs[meter].Meter == meter {
		return &rs[meter]
	}
	i := slices.IndexFunc(rs, func(r power.Reading) bool { return r.Meter == meter })
	if i < 0 {
		return nil
	}
	return &rs[i]
}

// midpoint makes one reading of the one before a snapshot and the one after. A
// counter that wrapped in between counts as it was before.
func midpoint(kind power.Kind, a, b *power.Reading) reading {
	if a != nil && a.Err != "" {
		a = nil
	}
	why := "not among the meters that were read"
	if b != nil && b.Err != "" {
		why, b = b.Err, nil
	}
	switch {
	case a == nil && b == nil:
		return reading{problem: why}
	case a == nil:
		a = b
	case b == nil, kind == power.Energy && b.Value < a.Value:
		b = a
	}
	return reading{ok: true, at: a.At + (b.At-a.At)/2, value: a.Value + (b.Value-a.Value)/2, shown: b.Value,
		readError: (distance(a.Value, b.Value) + 1) / 2}
}
