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

// Mete writes the view under mete's names: what the machine as a whole used, what
// of that was system's and idle's, and with workloads what each of them used. What
// a server keeps as a series too has its name and its labels but for the cluster,
// which an agent does not know.
func (v *View) Mete(t *Text, workloads bool) {
	v.meteNode(t)
	if workloads {
		t.Grow(len(v.rows) * rowBytes)
	}
	shown := func(r *row) bool {
		return workloads || r.workload.Kind == workload.System || r.workload.Kind == workload.Idle
	}
	t.Begin("gauge", metric.Info, "A workload and what it is called; 1. Energy is the worst quality of its energy. Those that ended stay for two minutes.")
	for i := range v.rows {
		if r := &v.rows[i]; shown(r) {
			t.Put(1, metric.Node, v.host, metric.Workload, string(r.workload.ID), "kind", r.workload.Kind.String(), "name", r.workload.Name,
				"parent", string(r.parent), "path", r.workload.Path, "energy", r.quality.String())
		}
	}
	for i, res := range shownResources {
		d := domainOf(res)
		switch {
		case d == power.Package:
			t.Begin("counter", metric.FamilyOf(res).Name, "Energy of a workload itself, by domain: apportioned or modelled, as energy of its info says.")
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

// rowBytes is about what the metrics of one workload take.
const rowBytes = 1000

// meteNode writes what the machine as a whole used, and how its meters do.
func (v *View) meteNode(t *Text) {
	const uJ = unit.Microjoule
	n := &v.totals
	t.Begin("counter", "mete_node_cpu_seconds_total", "CPU time that the machine had, idle or not.")
	t.Put(unit.Nanosecond.Float(n.cpu), metric.Node, v.host)
	t.Begin("counter", "mete_node_memory_byte_seconds_total", "Memory that the machine had, over time.")
	t.Put(unit.ByteSecond.Float(n.memory), metric.Node, v.host)
	t.Begin("counter", "mete_node_energy_joules_total", "Energy of the machine by domain, idle or not, and how it is known.")
	for d := power.Package; d < power.DomainLimit; d++ {
		if v.domains[d].quality == usage.Absent && n.measured[d]+n.modelled[d] == 0 {
			continue
		}
		t.Put(uJ.Float(n.measured[d]), metric.Node, v.host, metric.Domain, d.String(), "quality", usage.Measured.String())
		t.Put(uJ.Float(n.modelled[d]), metric.Node, v.host, metric.Domain, d.String(), "quality", usage.Modelled.String())
	}
	t.Begin("counter", "mete_node_energy_error_joules_total", "By how much all parts of that energy may be off together, either way.")
	t.Put(uJ.Float(n.error), metric.Node, v.host)
	t.Begin("gauge", "mete_node_domain_watts", "Power of the machine by domain, on average over the latest window, and how it is known.")
	v.eachDomain(func(d power.Domain, at *domain) {
		t.Put(v.watts(at.used.whole), metric.Node, v.host, metric.Domain, d.String(), "quality", at.quality.String())
	})
	t.Begin("gauge", "mete_node_idle_watts", "Power that a domain is taken to draw when the machine does nothing: learned, or given.")
	for d := range v.domains {
		if at := &v.domains[d]; at.known {
			t.Put(float64(at.idle)/1e6, metric.Node, v.host, metric.Domain, power.Domain(d).String())
		}
	}
	t.Begin("gauge", "mete_node_idle_error_watts", "By how much that may be off, either way.")
	for d := range v.domains {
		if at := &v.domains[d]; at.known {
			t.Put(float64(at.off)/1e6, metric.Node, v.host, metric.Domain, power.Domain(d).String())
		}
	}
	t.Begin("gauge", "mete_agent_meter_up", "1 while what an energy meter shows is used; the log says why it is not.")
	for _, m := range v.meters {
		up := 0.0
		if m.Reason == energy.OK {
			up = 1
		}
		t.Put(up, metric.Node, v.host, "meter", m.Meter)
	}
}

// eachDomain calls f for each domain that something shows in the window.
func (v *View) eachDomain(f func(power.Domain, *domain)) {
	for d := power.Package; d < power.DomainLimit; d++ {
		if at := &v.domains[d]; at.quality != usage.Absent {
			f(d, at)
		}
	}
}

// watts is energy of the window in uJ as the mean power in W.
func (v *View) watts(uJ int64) float64 {
	if v.length <= 0 {
		return 0
	}
	return float64(uJ) / 1e6 / v.length
}

// domainOf is the domain that an energy is of; 0 where a resource is none.
func domainOf(r usage.Resource) power.Domain {
	for d := power.Package; d < power.DomainLimit; d++ {
		if usage.EnergyOf(d) == r {
			return d
		}
	}
	return 0
}

// helpOf is what a resource is.
func helpOf(r usage.Resource) string {
	switch r {
	case usage.EnergyError:
		return "By how much the energy of a workload may be off, either way."
	case usage.EnergyIdle:
		return "How much of the energy of a workload is what the machine draws anyway: of idle all, of a virtual machine its part."
	}
	h := r.Detail().Help
	return strings.ToUpper(h[:1]) + h[1:] + ", of a workload itself."
}
