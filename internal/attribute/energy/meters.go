package energy

import (
	"slices"

	"mete.dev/mete/internal/model/power"
)

// A Config describes the meters of a machine.
type Config struct {
	// Meters are the meters to read; readings refer to them by index.
	Meters []power.Meter
	// Curve is used while no meter shows anything. A curve without points leaves energy absent.
	Curve power.Curve
	// Static is the power in uW that a domain draws without load, set by an operator; 0 means that
	// it is learned.
	Static [power.DomainLimit]int64
}

// Meters holds a machine's meters and what was learned from them. It is not safe for concurrent
// use.
type Meters struct {
	config       Config // with Curve scaled to the CPUs that are online
	curve        power.Curve
	meters       []meterState
	domainModels [power.DomainLimit]PowerModel // of each domain's total power
	skew         int64                         // uJ of parts in excess of their outer meter, to be compensated
	outer        int64                         // uJ that the outer meter showed last, in a tick in which it moved
	ratios       [power.LevelLimit]ratio
	tick         Tick
	usedCurve    bool // in the latest tick
	simulated    bool // the meters are simulated
}

// An Interval is the time of a tick and the machine's load in it.
type Interval struct {
	At      int64 // of the final snapshot, ns of CLOCK_BOOTTIME
	Elapsed int64 // ns since the previous snapshot; 0 for the first
	// Suspended is how much of Elapsed the machine was suspended, in ns. Meters that kept counting
	// include that time; otherwise the energy is unknown, and neither model nor curve substitutes
	// for it.
	Suspended int64
	Load      int64 // CPU time used, in ppm of the available CPU time
	CPUs      int   // online
}

// runningTime returns the time in ns that the machine was not suspended.
func (iv *Interval) runningTime() int64 { return max(0, iv.Elapsed-max(0, iv.Suspended)) }

// isRepresentative reports whether the tick is long enough to relate power to load, without a
// suspend.
func (iv *Interval) isRepresentative() bool {
	return iv.Elapsed >= second/10 && iv.Suspended <= iv.Elapsed/100
}

// A Tick is the energy of one tick. The next tick overwrites it.
type Tick struct {
	Domain [power.DomainLimit]DomainEnergy
	Events []Event
}

// New returns meters without learned state.
func New(c Config) *Meters {
	m := &Meters{config: c, curve: c.Curve, meters: make([]meterState, len(c.Meters))}
	for i := range c.Meters {
		m.meters[i].Meter = c.Meters[i]
		m.simulated = m.simulated || c.Meters[i].From == power.Model
		if c.Meters[i].From == power.Host {
			m.meters[i].host = &hostState{}
		}
	}
	m.setCurves()
	return m
}

// Tick books the time since the previous snapshot. before and after are the readings just before
// and after the machine was read: the midpoint counts, and half the difference is part of the
// error. The first tick books nothing: counting begins there.
func (m *Meters) Tick(iv Interval, before, after []power.Reading) *Tick {
	m.tick.Events = m.tick.Events[:0]
	m.forgetMissing(&iv)
	if m.config.Curve.Threads != iv.CPUs {
		m.config.Curve = ScaleCurve(m.curve, iv.CPUs)
	}
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
		m.recordCurveSubstitute(&flows)
	}
	for d := power.Package; d < power.DomainLimit; d++ {
		m.tick.Domain[d] = m.domainEnergy(d, flows[d], &iv)
	}
	return &m.tick
}

// Latest returns the latest tick. It is valid until the next one.
func (m *Meters) Latest() *Tick { return &m.tick }

// findReading returns the reading of a meter, or nil.
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

// midpoint combines the readings before and after a snapshot. For a counter that wrapped in
// between, the first one counts.
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
