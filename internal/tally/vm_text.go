package tally

import (
	"slices"
	"strconv"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/unit"
	"mete.dev/mete/internal/view"
)

// VMsText writes virtual machines as a table for people, and what its figures mean.
func VMsText(list []query.VM, s Style) string {
	if len(list) == 0 {
		return "no host gave a virtual machine energy in this range\n"
	}
	var rows [][]string
	var seen marks
	differ := false
	for i := range list {
		v := &list[i]
		node, last := s.absent(), s.absent()
		if v.Node != "" {
			node = s.text(v.NodeName)
		}
		if !v.Last.IsZero() {
			last = s.time(v.Last)
		}
		differing := strconv.FormatInt(v.Differing, 10)
		if v.Differing > 0 {
			differing += ", by " + joules(unit.Sum{}.Add(v.Largest).Float(unit.Microjoule))
			differ = true
		}
		rows = append(rows, []string{s.text(v.Guest), s.text(v.Name), s.text(v.HostName), s.text(string(v.Workload)), node,
			strconv.FormatInt(v.Compared, 10), differing, last, s.vmEnergy(&v.Usage, &seen)})
	}
	cols := slices.Concat(names("GUEST", "NAME", "HOST", "WORKLOAD", "NODE"), numbers("COMPARED", "DIFFERING"), names("LAST"), numbers("ENERGY (ACTIVE + IDLE)"))
	text := table(cols, rows)
	if differ {
		text += "shares that differ: host and guest do not say the same; one of them has lost its state, or does not tell the truth\n"
	}
	return text + s.legend(&seen)
}

// vmEnergy writes the energy of a virtual machine with its mark.
func (s Style) vmEnergy(t *query.Total, seen *marks) string {
	_, active, idle, split, q := vmEnergy(t)
	switch q {
	case meter.Absent:
		seen.absent = true
		return s.absent()
	case meter.Apportioned:
		seen.apportioned = true
	case meter.Modelled:
		seen.modelled = true
	}
	shown := query.Total{Present: meter.SetOf(meter.EnergyRest) | t.Present&meter.SetOf(meter.EnergyError)}
	shown.Quality.Set(meter.EnergyRest, q)
	shown.Sum[meter.EnergyRest], shown.Sum[meter.EnergyError] = active, t.Sum[meter.EnergyError]
	if split {
		shown.Idle, shown.IdleQuality = idle, q
	}
	return view.Mark(q, s.ASCII) + s.energy(&shown)
}
