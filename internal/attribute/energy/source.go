package energy

import (
	"strings"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// Source says in words where the energy of a domain in the latest tick is from;
// "" where it is absent.
func (m *Meters) Source(d power.Domain) string {
	if m.tick.Domain[d].Quality == usage.Absent {
		return ""
	}
	if m.guesses(d) {
		return m.config.Curve.Source
	}
	var shown, inside, missing []string
	for i := range m.gauges {
		g := &m.gauges[i]
		name := g.Name
		if g.flow.quality == usage.Modelled {
			name = "what was learned of " + name
		}
		switch {
		case g.flow.quality == usage.Absent && g.Level == power.Part && g.Domain == d:
			missing = append(missing, name)
		case g.flow.quality == usage.Absent:
		case g.Level > power.Part && d == power.Rest, g.Level == power.Part && g.Domain == d:
			shown = append(shown, name)
		case g.Level == power.Part:
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
