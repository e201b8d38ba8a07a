package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A State is how a meter is doing since the latest tick.
type State struct {
	Meter  string // its name
	Reason Reason // why it is not used; Fine where it is
}

// States returns how each meter is doing, in their order.
func (m *Meters) States() []State {
	list := make([]State, 0, len(m.gauges))
	for i := range m.gauges {
		if g := &m.gauges[i]; !g.awaited() {
			list = append(list, State{Meter: g.Name, Reason: g.reason})
		}
	}
	return list
}

// awaited says whether the meter shows what a host gives, and never gave: most give
// nothing, so it is not missing.
func (g *gauge) awaited() bool { return g.host != nil && !g.seen && !g.law.Known() }

// Idle returns the power in uW that a domain is taken to draw when the machine
// does nothing, and by how much that may be off: what was given, else what was
// learned from its meters. It is false where nothing was given or learned.
func (m *Meters) Idle(d power.Domain) (uW, off int64, ok bool) {
	if given := m.config.Static[d]; given > 0 {
		return given, 0, true
	}
	l := &m.laws[d]
	if !l.Known() {
		return 0, 0, false
	}
	p, o := l.Static()
	return rounded(p), rounded(math.Abs(o)), true
}
