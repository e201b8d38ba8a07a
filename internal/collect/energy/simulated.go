package energy

import (
	"path"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
)

// maxLabel is the longest name of simulated meters that is shown.
const maxLabel = 64

// simulated gives the zones of a directory that says to be simulated that name in
// place of RAPL's, and returns it; "" where it says nothing.
func simulated(h *hostfs.FS, dir string, zones []*fileMeter) string {
	label, err := readWord(h, path.Join(dir, power.SimulatedFile))
	if err != nil {
		return ""
	}
	label = strings.Join(strings.FieldsFunc(label, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if label = strings.ToValidUTF8(label[:min(len(label), maxLabel)], ""); label == "" {
		label = power.DemoLabel
	}
	for _, m := range zones {
		m.meter.Name = label + " " + strings.TrimPrefix(m.meter.Name, "rapl/")
		m.meter.From = power.Model
	}
	return label
}

// Simulated is what the meters are called where nobody measures what they show;
// "" where they are real.
func (s *Source) Simulated() string { return s.simulated }
