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
	config  Config
	gauges  []gauge
	laws    [power.DomainLimit]Law // of each domain's whole power
	carry   int64                  // uJ of parts beyond what holds them, not worked off
	ratios  [power.LevelLimit]ratio
	tick    Tick
	guessed bool // the latest tick went by the curve
	played  bool // the meters are simulated: nobody measured what they show
}

// A Span is the time of a tick, and what the machine did in it.
type Span struct {
	At      int64 // of the snapshot at its end, ns of CLOCK_BOOTTIME
	Elapsed int64 // ns since the snapshot before; 0 for the first one
	// Asleep is for how much of Elapsed the machine was suspended, in ns. Meters
	// that went on counted that too; what it drew where they did not is not known,
	// so that no law and no curve stands in for it.
	Asleep int64
	Load   int64 // CPU time used, in ppm of the CPU time that there was
	CPUs   int   // online
}

// awake is for how long of the tick the machine ran, in ns.
func (s *Span) awake() int64 { return max(0, s.Elapsed-max(0, s.Asleep)) }

// teaches says whether the tick shows what power belongs to a load: it is not
// too short for that, and not of a machine that was suspended.
func (s *Span) teaches() bool { return s.Elapsed >= second/10 && s.Asleep <= s.Elapsed/100 }

// A Tick is the energy of one tick. It is overwritten by the next one.
type Tick struct {
	Domain [power.DomainLimit]Amount
	Events []Event
}

// New returns the meters of a machine, of which nothing is known yet.
func New(c Config) *Meters {
	m := &Meters{config: c, gauges: make([]gauge, len(c.Meters))}
	for i := range c.Meters {
		m.gauges[i].Meter = c.Meters[i]
		m.played = m.played || c.Meters[i].From == power.Model
		if c.Meters[i].From == power.Host {
			m.gauges[i].host = &handed{}
		}
	}
	return m
}

// Tick books the time from the snapshot before to this one. Before and after
// are what the meters showed just before and just after the machine was read:
// the middle counts, and half the difference is part of the error. The first
// tick books nothing: it is where counting begins.
func (m *Meters) Tick(s Span, before, after []power.Reading) *Tick {
	m.tick.Events = m.tick.Events[:0]
	for i := range m.gauges {
		g := &m.gauges[i]
		was, since := g.reason, g.since
		awaited := g.awaited()
		var r reading
		if b, a := find(before, i), find(after, i); g.host != nil {
			r = g.take(b, a, &s)
		} else {
			r = between(g.Kind, b, a)
			g.tick(r, &s)
		}
		if g.reason == was || awaited {
			continue
		}
		if was != Fine {
			m.tick.Events = append(m.tick.Events, Event{Meter: g.Name, Reason: was, From: since, To: s.At})
		}
		if g.reason != Fine {
			m.tick.Events = append(m.tick.Events, Event{Meter: g.Name, Reason: g.reason, Detail: g.detail(r, s.At), From: g.since})
		}
	}
	flows := m.nest(&s)
	if m.guessed {
		m.lendGuess(&flows)
	}
	for d := power.Package; d < power.DomainLimit; d++ {
		m.tick.Domain[d] = m.amount(d, flows[d], &s)
	}
	return &m.tick
}

// Latest returns the latest tick. It is good until the next one.
func (m *Meters) Latest() *Tick { return &m.tick }

// find returns the reading of a meter, nil where there is none.
func find(rs []power.Reading, meter int) *power.Reading {
	if meter < len(rs) && rs[meter].Meter == meter {
		return &rs[meter]
	}
	i := slices.IndexFunc(rs, func(r power.Reading) bool { return r.Meter == meter })
	if i < 0 {
		return nil
	}
	return &rs[i]
}

// between makes one reading of the one before a snapshot and the one after. A
// counter that wrapped in between counts as it was before.
func between(kind power.Kind, a, b *power.Reading) reading {
	if a != nil && a.Err != "" {
		a = nil
	}
	why := "not among the meters that were read"
	if b != nil && b.Err != "" {
		why, b = b.Err, nil
	}
	switch {
	case a == nil && b == nil:
		return reading{why: why}
	case a == nil:
		a = b
	case b == nil, kind == power.Energy && b.Value < a.Value:
		b = a
	}
	return reading{ok: true, at: a.At + (b.At-a.At)/2, value: a.Value + (b.Value-a.Value)/2, shown: b.Value,
		half: (distance(a.Value, b.Value) + 1) / 2}
}
