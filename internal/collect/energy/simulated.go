package energy

import (
	"path"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
)

// mostLabel is the longest name of simulated meters that is shown.
const mostLabel = 64

// simulated gives the zones of a directory that says to be simulated that name in
// place of RAPL's, and returns it; "" where it says nothing.
func simulated(h *hostfs.FS, dir string, zones []*gauge) string {
	label, err := word(h, path.Join(dir, power.SimulatedFile))
	if err != nil {
		return ""
	}
	label = strings.Join(strings.FieldsFunc(label, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if label = strings.ToValidUTF8(label[:min(len(label), mostLabel)], ""); label == "" {
		label = power.Demo
	}
	for _, g := range zones {
		g.meter.Name = label + " " + strings.TrimPrefix(g.meter.Name, "rapl/")
		g.meter.From = power.Model
	}
	return label
}

// Simulated is what the meters are called where nobody measures what they show;
// "" where they are real.
func (s *Source) Simulated() string { return s.simulated }
