// Package metric names the time series that windows become, as Prometheus knows
// them: cumulative counters and gauges, in base units.
//
// A series of a workload is labeled with cluster, node and workload, and one of
// energy with its domain. What a workload is called, and what it belongs to, is in
// the labels of mete_workload_info, whose value is 1: names may come late and
// change, and no series breaks for it.
package metric

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// The labels of series.
const (
	Cluster  = "cluster"
	Node     = "node"
	Workload = "workload"
	Domain   = "domain" // of energy
)

// ShortLived is the workload of the series of all those together that lived for less
// than a window of measuring, by node, and of those that are too many there to have
// series of their own.
const ShortLived = "brief"

// Info is the series with a workload's names.
const Info = "mete_workload_info"

// The series of a node of its own: what there is.
const (
	CPUs   = "mete_node_cpus"
	Memory = "mete_node_memory_bytes"
)

// A Family is the series of all workloads of one resource.
type Family struct {
	Name     string
	Resource usage.Resource
	// Domain is the label of that name; "" is without.
	Domain string
	// Counter says that values are cumulative since a life began; those of the
	// others are of the window that ends there.
	Counter bool
	Unit    unit.Unit
	Help    string
}

// families are those of all resources, by their number.
var families = func() (list [usage.Limit]Family) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		list[r] = family(r)
	}
	return list
}()

// FamilyOf returns the family of a resource.
func FamilyOf(r usage.Resource) *Family { return &families[r] }

// FindResource returns the resource whose family has a name and a domain.
func FindResource(name, domain string) (usage.Resource, bool) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		if families[r].Name == name && families[r].Domain == domain {
			return r, true
		}
	}
	return 0, false
}

// Families returns the families of all resources, in the order of the list.
func Families() []Family { return families[1:] }

func family(r usage.Resource) Family {
	d := r.Detail()
	f := Family{Resource: r, Counter: d.Kind != usage.Peak, Unit: d.Unit, Help: d.Help}
	f.Name = "mete_workload_" + d.Name
	for at := power.Package; at < power.DomainLimit; at++ {
		if usage.EnergyOf(at) == r {
			f.Name, f.Domain, f.Help = "mete_workload_energy", at.String(), "energy by domain"
		}
	}
	if base := d.Unit.Base(); base != "" {
		f.Name += "_" + base
	}
	if f.Counter {
		f.Name += "_total"
	}
	return f
}

// Value is an amount in base units, as series have it: as near as 53 bits come.
func (f *Family) Value(amount int64) float64 { return float64(amount) / f.one() }

// Amount is the amount of a value: the one that it was made of, where that is
// less than 2^52.
func (f *Family) Amount(value float64) int64 { return int64(math.Round(value * f.one())) }

// one is how many units of amounts are in a base unit.
func (f *Family) one() float64 {
	switch f.Unit {
	case unit.Nanosecond:
		return 1e9
	case unit.Microjoule:
		return 1e6
	}
	return 1
}

// A Metric describes the series of one name.
type Metric struct{ Name, Type, Unit, Help string }

// Metrics describes all names that series have.
func Metrics() (list []Metric) {
	seen := map[string]bool{}
	for _, f := range Families() {
		if seen[f.Name] {
			continue
		}
		seen[f.Name] = true
		m := Metric{Name: f.Name, Type: "gauge", Unit: f.Unit.Base(), Help: f.Help}
		if f.Counter {
			m.Type = "counter"
		}
		list = append(list, m)
	}
	list = append(list,
		Metric{Info, "gauge", "", "1, with what the workload is called and belongs to"},
		Metric{CPUs, "gauge", "", "CPUs that are online"},
		Metric{Memory, "gauge", "bytes", "memory that there is"})
	list = append(list, states...)
	for _, l := range Levels {
		if !seen[l.Name] {
			seen[l.Name] = true
			list = append(list, Metric{l.Name, "gauge", l.Unit, l.Help})
		}
	}
	return list
}
