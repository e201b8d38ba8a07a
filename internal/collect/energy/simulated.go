package energy

import (
	"path"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
)

// maxLabel is the maximum length of the label of simulated meters.
const maxLabel = 64

// simulated renames the zones of a directory with a label of simulated meters, and returns
// the label; "" without one.
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

// Simulated returns the label of simulated meters, "" if the meters are real.
func (s *Source) Simulated() string { return s.simulated }
