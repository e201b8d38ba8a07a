package table

import (
	"encoding/json"
	"strconv"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/ui/top"
)

// VMsText writes virtual machines as a table, and what its marks mean.
func VMsText(list []v1.VM, s Style) string {
	if len(list) == 0 {
		return "no host gave a virtual machine energy in this range\n"
	}
	var seen qualityMarks
	s = s.energyIn(known(list, func(v *v1.VM) *json.Number { return v.Energy }))
	differ := false
	text := write(each(list), []column[v1.VM]{
		{"GUEST", false, func(v *v1.VM) string { return s.text(v.Guest) }},
		{"NAME", false, func(v *v1.VM) string { return s.text(v.Name) }},
		{"HOST", false, func(v *v1.VM) string { return s.text(v.HostName) }},
		{"WORKLOAD", false, func(v *v1.VM) string { return s.text(string(v.Workload)) }},
		{"NODE", false, func(v *v1.VM) string {
			if v.Node == "" {
				return s.absent()
			}
			return s.text(v.NodeName)
		}},
		{"COMPARED", true, func(v *v1.VM) string { return strconv.FormatInt(v.Compared, 10) }},
		{"DIFFERING", true, func(v *v1.VM) string {
			text := strconv.FormatInt(v.Differing, 10)
			if v.Differing > 0 {
				text += ", by " + s.joules(energyOf(&v.Largest, usage.Measured).Value.Float(unit.Microjoule))
				differ = true
			}
			return text
		}},
		{"LAST", false, func(v *v1.VM) string { return s.time(v.Last) }},
		{"ENERGY (ACTIVE + IDLE)", true, func(v *v1.VM) string {
			seen.note(v.Quality)
			return s.vmEnergy(v)
		}},
	})
	if differ {
		text += "shares that differ: host and guest report different shares; one of them has lost its state or reports wrong figures\n"
	}
	return text + s.legend(&seen)
}

// vmEnergy writes the energy of a virtual machine with its mark.
func (s Style) vmEnergy(v *v1.VM) string {
	if v.Quality == usage.Absent {
		return s.absent()
	}
	active, idle := v.Energy, v.Idle
	if v.Active != nil {
		active = v.Active
	}
	return top.Mark(v.Quality, s.ASCII) + s.energy(energyOf(active, v.Quality), energyOf(idle, v.Quality), energyOf(v.Error, v.Quality), v1.Amount{})
}

// energyOf converts an energy in joules; the amount is absent if joules is nil.
func energyOf(joules *json.Number, q usage.Quality) v1.Amount {
	if joules == nil {
		return v1.Amount{}
	}
	v, err := unit.ParseSum(string(*joules), unit.Microjoule)
	if err != nil {
		return v1.Amount{}
	}
	return v1.Amount{Value: v, Quality: q}
}
