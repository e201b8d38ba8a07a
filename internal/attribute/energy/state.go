package energy

import (
	"math"

	"mete.dev/mete/internal/model/power"
)

// A State is the condition of a meter after the latest tick.
type State struct {
	Meter  string // its name
	Reason Reason // why it is not used; OK if it is
}

// States returns the state of each meter in order.
func (m *Meters) States() []State {
	list := make([]State, 0, len(m.meters))
	for i := range m.meters {
		if ms := &m.meters[i]; !ms.hasNeverReported() {
			list = append(list, State{Meter: ms.Name, Reason: ms.reason})
		}
	}
	return list
}

// hasNeverReported reports whether the meter is for a host's share and has never had one: most
// hosts give none, so it is not missing.
func (ms *meterState) hasNeverReported() bool {
	return ms.host != nil && !ms.seen && !ms.model.IsTrained()
}

// IdlePower returns the assumed power of a domain without load and its error, in uW: the configured
// one, else the learned one. It returns false if there is neither.
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
