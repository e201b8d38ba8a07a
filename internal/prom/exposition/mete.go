package exposition

import (
	"strings"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Mete writes the view under mete's names: the machine, the rows system and idle and, with
// workloads, each workload. Metrics that a server stores as series have the same names and
// labels there, except for the cluster, which an agent does not know.
func (v *View) Mete(t *Text, workloads bool) {
	v.meteNode(t)
	if workloads {
		t.Grow(len(v.rows) * rowBytes)
	}
	shown := func(r *row) bool {
		return workloads || r.workload.Kind == workload.System || r.workload.Kind == workload.Idle
	}
	t.Begin("gauge", metric.Info, "Names of a workload; the value is 1. The label energy is the worst quality of its energy. The label uid is of the Kubernetes pod that it is or belongs to. Ended workloads stay for two minutes.")
	for i := range v.rows {
		if r := &v.rows[i]; shown(r) {
			t.Put(1, metric.Node, v.host, metric.Workload, string(r.workload.ID), "kind", r.workload.Kind.String(), "name", r.workload.Name,
				"parent", string(r.parent), "path", r.workload.Path, "uid", r.uid, "energy", r.quality.String())
		}
	}
	for i, res := range exposedResources {
		d := domainOf(res)
		switch {
		case d == power.Package:
			t.Begin("counter", metric.FamilyOf(res).Name, "Energy of a workload without its children, by domain: apportioned or modelled, as the label energy of its info says.")
		case d == 0:
			t.Begin("counter", metric.FamilyOf(res).Name, helpOf(res))
		}
		for k := range v.rows {
			r := &v.rows[k]
			if !r.Has(res) || !shown(r) {
				continue
			}
			value := metric.FamilyOf(res).Value(r.total[i])
			if d == 0 {
				t.Put(value, metric.Node, v.host, metric.Workload, string(r.workload.ID))
			} else {
				t.Put(value, metric.Node, v.host, metric.Workload, string(r.workload.ID), metric.Domain, d.String())
			}
		}
	}
}

// rowBytes is the approximate size of the metrics of one workload.
const rowBytes = 1000

// meteNode writes the metrics of the machine and the states of its meters.
func (v *View) meteNode(t *Text) {
	const uJ = unit.Microjoule
	n := &v.totals
	t.Begin("counter", "mete_node_cpu_seconds_total", "CPU time of the machine, idle and used.")
	t.Put(unit.Nanosecond.Float(n.cpu), metric.Node, v.host)
	t.Begin("counter", "mete_node_memory_byte_seconds_total", "Memory of the machine, integrated over time.")
	t.Put(unit.ByteSecond.Float(n.memory), metric.Node, v.host)
	t.Begin("counter", "mete_node_energy_joules_total", "Energy of the machine by domain and quality, idle and active.")
	for d := power.Package; d < power.DomainLimit; d++ {
		if v.domains[d].quality == usage.Absent && n.measured[d]+n.modelled[d] == 0 {
			continue
		}
		t.Put(uJ.Float(n.measured[d]), metric.Node, v.host, metric.Domain, d.String(), "quality", usage.Measured.String())
		t.Put(uJ.Float(n.modelled[d]), metric.Node, v.host, metric.Domain, d.String(), "quality", usage.Modelled.String())
	}
	t.Begin("counter", "mete_node_energy_error_joules_total", "Total error bound of the machine's energy, in either direction.")
	t.Put(uJ.Float(n.error), metric.Node, v.host)
	t.Begin("gauge", "mete_node_domain_watts", "Average power of the machine by domain and quality, in the latest window.")
	v.eachDomain(func(d power.Domain, at *domain) {
		t.Put(v.watts(at.used.whole), metric.Node, v.host, metric.Domain, d.String(), "quality", at.quality.String())
	})
	t.Begin("gauge", "mete_node_idle_watts", "Idle power of a domain, learned or configured.")
	for d := range v.domains {
		if at := &v.domains[d]; at.known {
			t.Put(float64(at.idle)/1e6, metric.Node, v.host, metric.Domain, power.Domain(d).String())
		}
	}
	t.Begin("gauge", "mete_node_idle_error_watts", "Error bound of the idle power of a domain, in either direction.")
	for d := range v.domains {
		if at := &v.domains[d]; at.known {
			t.Put(float64(at.off)/1e6, metric.Node, v.host, metric.Domain, power.Domain(d).String())
		}
	}
	t.Begin("gauge", "mete_agent_meter_up", "1 while the readings of an energy meter are used, else 0; the log has the reason.")
	for _, m := range v.meters {
		up := 0.0
		if m.Reason == energy.OK {
			up = 1
		}
		t.Put(up, metric.Node, v.host, "meter", m.Meter)
	}
}

// eachDomain calls f for each domain whose energy is not absent in the window.
func (v *View) eachDomain(f func(power.Domain, *domain)) {
	for d := power.Package; d < power.DomainLimit; d++ {
		if at := &v.domains[d]; at.quality != usage.Absent {
			f(d, at)
		}
	}
}

// watts converts energy of the window in uJ to its average power in W.
func (v *View) watts(uJ int64) float64 {
	if v.length <= 0 {
		return 0
	}
	return float64(uJ) / 1e6 / v.length
}

// domainOf returns the domain of an energy resource; 0 for other resources.
func domainOf(r usage.Resource) power.Domain {
	for d := power.Package; d < power.DomainLimit; d++ {
		if usage.EnergyOf(d) == r {
			return d
		}
	}
	return 0
}

// helpOf returns the help text of a resource.
func helpOf(r usage.Resource) string {
	switch r {
	case usage.EnergyError:
		return "Error bound of the energy of a workload, in either direction."
	case usage.EnergyIdle:
		return "Idle part of the energy of a workload: all energy of idle, the share of a virtual machine."
	}
	h := r.Detail().Help
	return strings.ToUpper(h[:1]) + h[1:] + ", of a workload without its children."
}
