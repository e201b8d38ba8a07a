package guest

import (
	"encoding/json"
	"math"
	"strings"
	"time"
)

// A vm is a virtual machine in the output of mete vms.
type vm struct {
	Guest     string  `json:"guest"`
	Name      string  `json:"name"`
	HostName  string  `json:"host_name"`
	NodeName  string  `json:"node_name"`
	Compared  int     `json:"compared"`
	Differing int     `json:"differing"`
	Energy    float64 `json:"energy_joules"`
	Active    float64 `json:"energy_active_joules"`
	Idle      float64 `json:"energy_idle_joules"`
	Quality   string  `json:"quality"`
}

// ask runs a query against the server and decodes its JSON answer.
func (r *rig) ask(into any, args ...string) {
	r.t.Helper()
	if out := r.run(append(args, "-o", "json")...); json.Unmarshal([]byte(out), into) != nil {
		r.t.Fatalf("mete %s: %s", strings.Join(args, " "), out)
	}
}

// vms returns the guest in the output of mete vms.
func (r *rig) vms() (v vm) {
	r.t.Helper()
	var a struct{ VMs []vm }
	r.ask(&a, "vms", "--from", "-1h")
	if len(a.VMs) > 1 {
		r.t.Fatalf("mete vms: %+v, want one", a.VMs)
	}
	for _, v = range a.VMs {
		if v.Guest != uuid || v.Name != name {
			r.t.Errorf("mete vms: %+v, want %s, %s", v, uuid, name)
		}
	}
	return v
}

// waitForComparison waits until the server has compared more shares, which must all be equal.
func (r *rig) waitForComparison(more int) {
	r.t.Helper()
	from, last := r.vms(), vm{}
	r.await(time.Minute, "the server compares host and guest", func() bool { last = r.vms(); return last.Compared >= from.Compared+more })
	if last.Differing > 0 {
		r.t.Errorf("%d of %d shares differ on the server", last.Differing, last.Compared)
	}
}

// A usage is the output of mete usage.
type usage struct {
	Groups       []group
	Nested       []group `json:"nested_groups"`
	NestedNodes  int     `json:"nested_nodes"`
	Total, Whole group
}

type group struct {
	Node   string  `json:"node"`
	CPU    float64 `json:"cpu_seconds"`
	Energy float64 `json:"energy_joules"`
}

// totals queries the totals: the guest is included in its host's figures, and in no other
// sum.
func (r *rig) totals() {
	r.t.Helper()
	r.stopGuest()
	var before vm
	r.await(time.Minute, "the guest's last window", func() bool {
		last := before
		before = r.vms()
		time.Sleep(2 * time.Second)
		return before.Compared > 0 && before.Compared == last.Compared
	})
	var nodes struct {
		Nodes []struct {
			Name   string `json:"name"`
			Nested *struct {
				Name     string `json:"name"`
				Workload string `json:"workload_name"`
			} `json:"nested_in"`
		}
	}
	r.ask(&nodes, "nodes")
	host := ""
	for _, n := range nodes.Nodes {
		if n.Name == name && (n.Nested == nil || !strings.Contains(n.Nested.Workload, name)) {
			r.t.Errorf("mete nodes: the guest is nested in %+v", n.Nested)
		}
		if n.Name != name {
			host = n.Name
		}
	}
	v := r.vms()
	if v.HostName != host || v.NodeName != name || v.Compared < 30 || v.Active <= 0 || math.Abs(v.Active+v.Idle-v.Energy) > 1e-3 {
		r.t.Errorf("mete vms: %+v, want one of the host %s", v, host)
	}
	var u usage
	r.ask(&u, "usage", "--by", "node", "--from", "-1h", "--nested", "also")
	switch {
	case len(u.Groups) != 1 || u.NestedNodes != 1 || len(u.Nested) != 1:
		r.t.Errorf("mete usage: %+v, want the host, and a guest beside it", u)
	case u.Groups[0].CPU != u.Total.CPU, u.Groups[0].Energy != u.Total.Energy, u.Total.CPU != u.Whole.CPU, u.Total.Energy != u.Whole.Energy:
		r.t.Errorf("mete usage: host %+v, total %+v, whole %+v, want one and the same", u.Groups[0], u.Total, u.Whole)
	case u.Nested[0].CPU <= 0 || u.Nested[0].Energy <= 0:
		r.t.Errorf("mete usage: of the guest %+v", u.Nested[0])
	}
	for _, args := range []string{"nodes", "vms", "usage --by node --from -1h", "usage --by node,kind --from -1h", "gaps --from -1h"} {
		r.t.Logf("mete %s\n%s", args, r.run(strings.Fields(args)...))
	}
}
