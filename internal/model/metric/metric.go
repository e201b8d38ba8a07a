// Package metric names the time series of windows, following Prometheus: cumulative counters and
// gauges in base units.
//
// Series of workloads have labels cluster, node and workload; those of energy also domain, and those of network traffic
// by class also class. Names of
// workloads are in the labels of mete_workload_info, whose value is 1, so that late or changed
// names do not interrupt other series.
package metric

import (
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Labels of series.
const (
	Cluster  = "cluster"
	Node     = "node"
	Workload = "workload"
	Domain   = "domain" // of energy
	Class    = "class"  // of network traffic
)

// ShortLived is the workload label of one series per node that sums workloads shorter than a window
// and those beyond the limit of series.
const ShortLived = "brief"

// ShortLivedJobs is ShortLived for the standalone jobs of a machine: their node has the name of the
// machine, whose agent may have such a series too.
const ShortLivedJobs = "brief-jobs"

// Info is the series with a workload's names.
const Info = "mete_workload_info"

// Series of a node's capacity.
const (
	CPUs   = "mete_node_cpus"
	Memory = "mete_node_memory_bytes"
)

// A Family is the series of one resource of all workloads.
type Family struct {
	Name     string
	Resource usage.Resource
	// Label is one more label, with its value: Domain or Class; "" without one.
	Label, LabelValue string
	// Counter says that values are cumulative since the life began; other values are of the window
	// that ends at the sample.
	Counter bool
	Unit    unit.Unit
	Help    string
}

// families are the families of all resources by number.
var families = func() (list [usage.Limit]Family) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		list[r] = family(r)
	}
	return list
}()

// FamilyOf returns the family of a resource.
func FamilyOf(r usage.Resource) *Family { return &families[r] }

// FindResource returns the resource of a series, of which label returns the value of a label, "" without one.
func FindResource(name string, label func(name string) string) (usage.Resource, bool) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		if f := &families[r]; f.Name == name && (f.Label == "" || f.LabelValue == label(f.Label)) {
			return r, true
		}
	}
	return 0, false
}

// Families returns the families of all resources that windows can have, in order.
func Families() []Family { return measured }

var measured = func() (list []Family) {
	usage.Metered.Each(func(r usage.Resource) { list = append(list, families[r]) })
	return list
}()

func family(r usage.Resource) Family {
	d := r.Detail()
	f := Family{Resource: r, Counter: d.Kind != usage.Peak, Unit: d.Unit, Help: d.Help}
	f.Name = "mete_workload_" + d.Name
	for at := power.Package; at < power.DomainLimit; at++ {
		if usage.EnergyOf(at) == r {
			f.Name, f.Label, f.LabelValue, f.Help = "mete_workload_energy", Domain, at.String(), "energy by domain"
		}
	}
	for c := usage.ClassNode; c < usage.NetworkClassLimit; c++ {
		switch r {
		case c.Rx():
			f.Name, f.Label, f.LabelValue, f.Help = "mete_workload_network_class_rx", Class, c.String(), "bytes received, by class of the other end"
		case c.Tx():
			f.Name, f.Label, f.LabelValue, f.Help = "mete_workload_network_class_tx", Class, c.String(), "bytes sent, by class of the other end"
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

// Value converts an amount to base units, with 53 bits of precision.
func (f *Family) Value(amount int64) float64 { return float64(amount) / f.Unit.One() }

// Amount converts a value back to the amount, exactly if it is less than 2^52.
func (f *Family) Amount(value float64) int64 { return int64(math.Round(value * f.Unit.One())) }

// A Metric describes the series of one name.
type Metric struct{ Name, Type, Unit, Help string }

// Metrics describes all names of series.
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
		Metric{Memory, "gauge", "bytes", "total memory"})
	list = append(list, states...)
	for _, l := range Levels {
		if !seen[l.Name] {
			seen[l.Name] = true
			list = append(list, Metric{l.Name, "gauge", l.Unit, l.Help})
		}
	}
	return list
}
