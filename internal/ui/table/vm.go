package table

import (
	"slices"
	"strconv"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/ui/top"
)

// VMsText formats virtual machines as a table for people, with a legend.
func VMsText(list []query.VM, s Style) string {
	if len(list) == 0 {
		return "no host gave a virtual machine energy in this range\n"
	}
	var rows [][]string
	var seen qualityMarks
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
	cols := slices.Concat(textColumns("GUEST", "NAME", "HOST", "WORKLOAD", "NODE"), numberColumns("COMPARED", "DIFFERING"), textColumns("LAST"), numberColumns("ENERGY (ACTIVE + IDLE)"))
	text := render(cols, rows)
	if differ {
		text += "shares that differ: host and guest report different shares; one of them has lost its state or reports wrong figures\n"
	}
	return text + s.legend(&seen)
}

// vmEnergy formats the energy of a virtual machine with its mark.
func (s Style) vmEnergy(t *query.Total, seen *qualityMarks) string {
	_, active, idle, split, q := v1.VMEnergy(t)
	switch q {
	case usage.Absent:
		seen.absent = true
		return s.absent()
	case usage.Apportioned:
		seen.apportioned = true
	case usage.Modelled:
		seen.modelled = true
	}
	shown := query.Total{Present: usage.SetOf(usage.EnergyRest) | t.Present&usage.SetOf(usage.EnergyError)}
	shown.Quality.Set(usage.EnergyRest, q)
	shown.Sum[usage.EnergyRest], shown.Sum[usage.EnergyError] = active, t.Sum[usage.EnergyError]
	if split {
		shown.Idle, shown.IdleQuality = idle, q
	}
	return top.Mark(q, s.ASCII) + s.energy(&shown)
}
