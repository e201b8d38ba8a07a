package energy

import (
	"strings"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// Source describes where the energy of a domain in the latest tick is from; "" if it is absent.
func (m *Meters) Source(d power.Domain) string {
	if m.tick.Domain[d].Quality == usage.Absent {
		return ""
	}
	if m.usesCurve(d) {
		return m.config.Curve.Source
	}
	var shown, inside, missing []string
	for i := range m.meters {
		ms := &m.meters[i]
		name := ms.Name
		if ms.latest.quality == usage.Modelled {
			name = "what was learned of " + name
		}
		switch {
		case ms.latest.quality == usage.Absent && ms.Level == power.Part && ms.Domain == d:
			missing = append(missing, name)
		case ms.latest.quality == usage.Absent:
		case ms.Level > power.Part && d == power.Rest, ms.Level == power.Part && ms.Domain == d:
			shown = append(shown, name)
		case ms.Level == power.Part:
			inside = append(inside, name)
		}
	}
	text := strings.Join(shown, " + ")
	if len(missing) > 0 && text != "" {
		text += ", and as much for " + strings.Join(missing, " + ")
	}
	if d == power.Rest && len(inside) > 0 {
		text += " less " + strings.Join(inside, " + ")
	}
	return text
}
