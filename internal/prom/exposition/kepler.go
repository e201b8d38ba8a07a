package exposition

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// zones are Kepler's names of domains. Kepler's zone psys includes the packages, so that no
// domain of mete corresponds to it.
var zones = [power.DomainLimit]string{power.Package: "package", power.DRAM: "dram"}

// Kepler writes the view under the names of Kepler's metrics, version 0.10 and later (its
// docs/user/metrics.md), as far as mete has their exact values. With workloads it includes
// containers, virtual machines and pods.
func (v *View) Kepler(t *Text, workloads bool) {
	v.keplerNode(t)
	if !workloads {
		return
	}
	each := func(f func(r *row, state, zone string, d power.Domain)) {
		for i := range v.rows {
			r := &v.rows[i]
			state := "running"
			if r.ended != 0 {
				state = "terminated"
			}
			for d, zone := range zones {
				if d := power.Domain(d); zone != "" && r.Has(usage.EnergyOf(d)) {
					f(r, state, zone, d)
				}
			}
		}
	}
	pods := v.podUIDs()
	container := func(r *row, state, zone string) []string {
		runtime := runtimeOf(&r.workload)
		if runtime == "cri-o" {
			runtime = "crio"
		}
		id := r.workload.Key
		if id == "" { // its maker gave it no key
			id = string(r.workload.ID)
		}
		return []string{"container_id", id, "container_name", r.workload.Name, "runtime", runtime, "state", state,
			"zone", zone, "pod_id", pods[r.workload.ID], "node_name", v.host}
	}
	machine := func(r *row, state, zone string) []string {
		id, name := r.guest, r.name
		if id == "" {
			id = string(r.workload.ID)
		}
		if name == "" {
			name = r.workload.Name
		}
		return []string{"vm_id", id, "vm_name", name, "hypervisor", runtimeOf(&r.workload), "state", state, "zone", zone, "node_name", v.host}
	}
	for _, k := range []struct {
		kind       workload.Kind
		name, what string
		labels     func(r *row, state, zone string) []string
	}{{workload.Container, "container", "container, by its activity", container}, {workload.VM, "vm", "virtual machine, by its activity and its share of the host's idle energy", machine}} {
		t.Begin("counter", "kepler_"+k.name+"_cpu_joules_total", "Energy by zone of a "+k.what+".")
		each(func(r *row, state, zone string, d power.Domain) {
			if r.workload.Kind == k.kind {
				t.Put(joules(r.totalOf(d)), k.labels(r, state, zone)...)
			}
		})
		t.Begin("gauge", "kepler_"+k.name+"_cpu_watts", "Average power in the latest window by zone of a "+k.what+".")
		each(func(r *row, state, zone string, d power.Domain) {
			if r.workload.Kind == k.kind {
				t.Put(v.watts(r.used[d]), k.labels(r, state, zone)...)
			}
		})
	}
	v.keplerPods(t)
}

// keplerPods writes pods with their containers. Their Kubernetes names are unknown, because
// the kernel does not have them.
func (v *View) keplerPods(t *Text) {
	put := func(value func(p *pod, d power.Domain) float64) {
		for i := range v.pods {
			p := &v.pods[i]
			for d, zone := range zones {
				if zone != "" && p.has[d] {
					t.Put(value(p, power.Domain(d)), "pod_id", p.uid, "pod_name", "", "pod_namespace", "", "state", "running", "zone", zone, "node_name", v.host)
				}
			}
		}
	}
	t.Begin("counter", "kepler_pod_cpu_joules_total", "Energy by zone of a pod and its containers, by their activity, since mete first saw the pod.")
	put(func(p *pod, d power.Domain) float64 { return joules(p.total[d]) })
	t.Begin("gauge", "kepler_pod_cpu_watts", "Average power of a pod and its containers, by zone, in the latest window.")
	put(func(p *pod, d power.Domain) float64 { return v.watts(p.used[d]) })
}

// keplerNode writes the metrics of the whole machine. The label path names mete's domain,
// because a zone may have several meters.
func (v *View) keplerNode(t *Text) {
	n := &v.totals
	put := func(name, kind, help string, value func(d power.Domain, at *domain) float64) {
		t.Begin(kind, "kepler_node_cpu_"+name, help)
		v.eachDomain(func(d power.Domain, at *domain) {
			if zones[d] != "" {
				t.Put(value(d, at), "zone", zones[d], "path", "mete/"+d.String(), "node_name", v.host)
			}
		})
	}
	all := func(d power.Domain) int64 { return n.measured[d] + n.modelled[d] }
	put("joules_total", "counter", "Energy of the node by zone, idle and active.",
		func(d power.Domain, _ *domain) float64 { return joules(all(d)) })
	put("watts", "gauge", "Average power of the node by zone, in the latest window.",
		func(_ power.Domain, at *domain) float64 { return v.watts(at.used.whole) })
	put("active_joules_total", "counter", "Active energy of the node by zone.",
		func(d power.Domain, _ *domain) float64 { return joules(all(d) - n.idle[d]) })
	put("active_watts", "gauge", "Average active power of the node by zone, in the latest window.",
		func(_ power.Domain, at *domain) float64 { return v.watts(at.used.whole - at.used.idle) })
	put("idle_joules_total", "counter", "Idle energy of the node by zone: what it would have used without any load.",
		func(d power.Domain, _ *domain) float64 { return joules(n.idle[d]) })
	put("idle_watts", "gauge", "Average idle power of the node by zone, in the latest window.",
		func(_ power.Domain, at *domain) float64 { return v.watts(at.used.idle) })
	t.Begin("gauge", "kepler_node_cpu_usage_ratio", "Used share of the CPU time of the node, in the latest window, 0 to 1.")
	if v.cpus.whole > 0 {
		t.Put(float64(v.cpus.whole-v.cpus.idle)/float64(v.cpus.whole), "node_name", v.host)
	}
}

// podUIDs returns the pod UID of each container in a pod.
func (v *View) podUIDs() map[workload.ID]string {
	at := make(map[workload.ID]int, len(v.rows))
	for i := range v.rows {
		at[v.rows[i].workload.ID] = i
	}
	in := map[workload.ID]string{}
	for i := range v.rows {
		if r := &v.rows[i]; r.workload.Kind == workload.Container {
			if p := v.podOf(r.workload.ID, at); p != nil {
				in[r.workload.ID] = p.workload.Key
			}
		}
	}
	return in
}

// totalOf returns the row's total energy of a domain, uJ.
func (r *row) totalOf(d power.Domain) int64 {
	for i, res := range exposedResources {
		if res == usage.EnergyOf(d) {
			return r.total[i]
		}
	}
	return 0
}

func joules(uJ int64) float64 { return float64(uJ) / 1e6 }
