package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A State is how a meter is doing since the latest tick.
type State struct {
	Meter  string // its name
	Reason Reason // why it is not used; OK where it is
}

// States returns how each meter is doing, in their order.
func (m *Meters) States() []State {
	list := make([]State, 0, len(m.meters))
	for i := range m.meters {
		if ms := &m.meters[i]; !ms.hasNeverReported() {
			list = append(list, State{Meter: ms.Name, Reason: ms.reason})
		}
	}
	return list
}

// hasNeverReported says whether the meter shows what a host gives, and never gave: most give
// nothing, so it is not missing.
func (ms *meterState) hasNeverReported() bool {
	return ms.host != nil && !ms.seen && !ms.model.IsTrained()
}

// IdlePower returns the power in uW that a domain is taken to draw when the machine
// does nothing, and by how much that may be off: what was given, else what was
// learned from its meters. It is false where nothing was given or learned.
func (m *Meters) IdlePower(d power.Domain) (uW, off int64, ok bool) {
	if given := m.config.Static[d]; given > 0 {
		return given, 0, true
	}
	pm := &m.domainModels[d]
	if !pm.IsTrained() {
		return 0, 0, false
	}
	p, o := pm.Static()
	return roundToInt(p), roundToInt(math.Abs(o)), true
}
