package v1

import (
	"cmp"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A figure describes one amount of a group.
type figure struct {
	key    string
	prefix string // the key in quotes and a colon
	unit   unit.Unit
	res    usage.Resource // its resource; the used one of unusedAmount and unusedAverage; the total of unclassifiedAmount; 0 for energy and power
	kind   figureKind
}

// A figureKind says what a figure is computed from.
type figureKind uint8

const (
	resourceAmount     figureKind = iota // of the resource
	levelAverage                         // the resource's integral over the length of the answer
	energySum                            // of all domains
	idleEnergy                           // energy of idle machines, where it was divided
	idleEnergyError                      // the error of that, either way
	powerAverage                         // both energies over the length of the answer
	unusedAmount                         // what of the resource was reserved and not used
	unusedAverage                        // the same over the length of the answer
	unclassifiedAmount                   // what of network traffic has no class
)

// allFigures are all figures, in the order in which they are written.
var allFigures = makeFigures()

func makeFigures() (all []figure) {
	add := func(key string, u unit.Unit, r usage.Resource, kind figureKind) {
		all = append(all, figure{key, string(appendText(nil, key)) + ":", u, r, kind})
	}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		d := r.Detail()
		if d.Kind == usage.Integral && d.Level == unit.Byte {
			add(d.Name+"_average_bytes", unit.Byte, r, levelAverage)
		}
		if r == usage.EnergyPackage { // derived figures come before the domains
			add("energy_joules", unit.Microjoule, 0, energySum)
			add("energy_idle_joules", unit.Microjoule, 0, idleEnergy)
			add("energy_idle_error_joules", unit.Microjoule, 0, idleEnergyError)
			add("energy_average_watts", unit.Microjoule, 0, powerAverage) // uJ a second are uW
		}
		add(keyOf(d), d.Unit, r, resourceAmount)
	}
	add("cpu_unused_seconds", unit.Nanosecond, usage.CPU, unusedAmount)
	add("memory_unused_average_bytes", unit.Byte, usage.Memory, unusedAverage)
	add("memory_unused_byte_seconds", unit.ByteSecond, usage.Memory, unusedAmount)
	add("network_rx_unclassified_bytes", unit.Byte, usage.NetworkRx, unclassifiedAmount)
	add("network_tx_unclassified_bytes", unit.Byte, usage.NetworkTx, unclassifiedAmount)
	return all
}

// isUnused reports whether the figure is of what was reserved and not used.
func (f figure) isUnused() bool { return f.kind == unusedAmount || f.kind == unusedAverage }

// isReserved reports whether the figure is of what is reserved, limited or not used.
func (f *figure) isReserved() bool { return f.isUnused() || usage.Specified.Has(f.res) }

// reservable returns the index of the figure's resource in query.Reservable, or -1.
func (f *figure) reservable() int {
	return slices.IndexFunc(query.Reservable[:], func(r query.Reserving) bool { return r.Used == f.res })
}

// classes are the resources of a total of network traffic by class.
func (f *figure) classes() usage.Set {
	for _, d := range usage.Directions {
		if d.Whole == f.res {
			return d.Classes
		}
	}
	return 0
}

// keyOf names an amount with its base unit. Idle energy that is booked to a row is part
// of its energy; what a policy gives to it is another figure.
func keyOf(d usage.Detail) string {
	switch base := d.Unit.Base(); {
	case d.Name == usage.EnergyIdle.String():
		return d.Name + "_booked_" + base
	case base != "":
		if strings.HasSuffix(d.Name, "_"+base) {
			return d.Name
		}
		return d.Name + "_" + base
	case d.Kind == usage.Integral:
		return d.Name + "_seconds" // things held over time
	}
	return d.Name
}

// A Figure describes one figure of a group.
type Figure struct {
	Key         string // in JSON and CSV, with its unit
	Help        string
	LargeAsText bool           // it is an integer, which is a string above 2^53
	Resource    usage.Resource // whose amount it is; 0 for a figure that is derived
}

// ListFigures returns all figures, in the order in which they are written.
func ListFigures() []Figure {
	var out []Figure
	for i := range allFigures {
		f := &allFigures[i]
		r := f.res
		if f.kind != resourceAmount {
			r = 0
		}
		out = append(out, Figure{f.key, f.help(), isInteger(f.unit), r})
	}
	return out
}

// help describes a figure.
func (f *figure) help() string {
	switch f.kind {
	case levelAverage:
		return f.res.Detail().Help + ", averaged over the time that was measured, in bytes"
	case energySum:
		return "energy of all domains, without the divided energy of idle machines, in joules"
	case idleEnergy:
		return "energy of idle machines that the policy assigns to it, in joules; null if no idle energy was divided"
	case idleEnergyError:
		return "error of energy_idle_joules either way, in joules"
	case powerAverage:
		return "average power over the time that was measured, in watts"
	case unusedAmount:
		return f.res.String() + " that was reserved and not used, summed over pods: what one of them uses beyond what it reserves is not deducted from what another one does not use; in " + f.unit.Base() + "; null if nothing was reserved"
	case unusedAverage:
		return f.res.String() + " that was reserved and not used, averaged over the time that was measured, in bytes; null if nothing was reserved"
	case unclassifiedAmount:
		return f.res.Detail().Help + " of which the class is not known: " + keyOf(f.res.Detail()) + " less the sum of the classes, in bytes"
	}
	return f.res.Detail().Help + ", in " + cmp.Or(f.unit.Base(), "units")
}

// Qualities returns the words for qualities.
func Qualities() (words []string) {
	for q := usage.Absent; q <= usage.Modelled; q++ {
		words = append(words, q.String())
	}
	return words
}
