package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Fleet is what a server says of its machines at an instant.
type Fleet struct {
	Server string
	At     time.Time
	Nodes  []v1.Node
	Rates  []live.NodeRates
	Only   string // id or name of the only node to show; "" for all
}

// Machine returns the fleet as one machine, with a row for each node and, if there are
// several clusters, a row for each cluster. These rows have no figures of their own. A node
// has no workloads below it if the server does not receive data from it, or if it is a guest
// of another node, whose figures include those of the guest. If Only does not name a node,
// the error wraps fault.ErrNotFound.
func (v Fleet) Machine() (*live.Machine, error) {
	f := &live.Fleet{Server: v.Server}
	m := &live.Machine{Time: v.At, Host: v.Server, Fleet: f}
	rates := make(map[string]*live.NodeRates, len(v.Rates))
	for i := range v.Rates {
		rates[v.Rates[i].Node] = &v.Rates[i]
	}
	var nodes []v1.Node
	clusters := map[string]bool{}
	for _, n := range v.Nodes {
		if v.Only == "" || v.Only == n.ID || v.Only == n.Name {
			nodes = append(nodes, n)
			clusters[n.Cluster] = true
		}
	}
	if len(nodes) == 0 && v.Only != "" {
		return nil, fault.WithHint(fmt.Errorf("node %q: %w", v.Only, fault.ErrNotFound), "mete nodes lists the nodes")
	}
	slices.SortFunc(nodes, func(a, b v1.Node) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	at := ""
	for i, n := range nodes {
		var parent workload.ID
		if len(clusters) > 1 {
			parent = workload.ID("cluster:" + n.Cluster)
			if i == 0 || n.Cluster != at {
				at = n.Cluster
				m.Rows = append(m.Rows, live.Row{ID: parent, Name: n.Cluster, Group: live.Cluster})
			}
		}
		v.addNode(m, &n, rates[n.ID], parent)
	}
	sumRows(m)
	return m, nil
}

// addNode appends the row of a node and those of its workloads, which r has; nil is none.
func (v Fleet) addNode(m *live.Machine, n *v1.Node, r *live.NodeRates, parent workload.ID) {
	group := live.Row{ID: workload.ID("node:" + n.ID), Parent: parent, Name: n.Name, Group: live.Node}
	m.Fleet.Nodes++
	switch {
	case n.State == "revoked":
		group.State, r = "revoked", nil
		m.Fleet.Stale++
	case n.Nested != nil && v.Only == "":
		name := n.Nested.Name
		if name == "" {
			name = string(n.Nested.Workload)
		}
		group.State, r = "guest of "+strings.TrimSuffix(n.Nested.HostName+": "+name, ": "), nil
		m.Fleet.Guests++
	case r == nil || n.State == "silent":
		group.State, r = n.State+formatSince(n.Through, v.At), nil
		if n.State == "live" {
			group.State = "no window yet" // since the server began
		}
		m.Fleet.Stale++
	case n.State != "live":
		group.State = n.State + formatSince(&r.To, v.At)
	}
	m.Rows = append(m.Rows, group)
	if r == nil {
		return
	}
	m.CPUs += r.CPUs
	m.Rows = append(m.Rows, nestRows(r, &group)...)
}

// formatSince writes how long before now t was; "" if t is nil, zero or not before now.
func formatSince(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() || !t.Before(now) {
		return ""
	}
	d := now.Sub(*t)
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.unit {
			return fmt.Sprintf(" for %d%s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf(" for %ds", d/time.Second)
}

// nestRows are the rows of a node, parents before children. Those without a parent among
// them are below the row of the node.
func nestRows(n *live.NodeRates, group *live.Row) []live.Row {
	known := make(map[workload.ID]bool, len(n.Rows))
	for i := range n.Rows {
		known[n.Rows[i].ID] = true
	}
	below := map[workload.ID][]int{}
	for i := range n.Rows {
		p := n.Rows[i].Parent
		if !known[p] || p == n.Rows[i].ID {
			p = group.ID
		}
		below[p] = append(below[p], i)
	}
	out := make([]live.Row, 0, len(n.Rows))
	taken := make([]bool, len(n.Rows))
	take := func(i int, parent workload.ID) {
		taken[i] = true
		out = append(out, rowOf(&n.Rows[i], parent, group.Name))
	}
	for _, i := range below[group.ID] {
		take(i, group.ID)
	}
	for done := 0; done < len(out); done++ {
		for _, i := range below[out[done].ID] {
			if !taken[i] {
				take(i, out[done].ID)
			}
		}
	}
	for i := range n.Rows { // rows whose parents form a circle
		if !taken[i] {
			take(i, group.ID)
		}
	}
	return out
}

// rowOf is the row of a workload of a node.
func rowOf(r *live.WorkloadRates, parent workload.ID, node string) live.Row {
	row := live.Row{ID: r.ID, Parent: parent, Kind: r.Kind, Name: r.Name, Node: node, Rates: r.Rates, Quality: r.Quality}
	if strings.HasPrefix(r.Name, "/") {
		row.Path = r.Name // nothing better is known
	}
	if r.PIDs != nil {
		tasks := float64(int64(*r.PIDs + 0.5)) // an average, shown as a count
		row.PIDs = &tasks
	}
	return row
}

// sumRows sets the figures of m as a whole to the sums of its rows.
func sumRows(m *live.Machine) {
	var total live.Figures
	var cpu, memory, power live.Parts
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Group == "" && !residual(r) {
			m.Fleet.Workloads++
		}
		f := r.Figures()
		total = total.Plus(&f)
		cpu.Add(r.Kind, f[live.CPU])
		memory.Add(r.Kind, f[live.Memory])
		power.Add(r.Kind, f[live.Power])
	}
	m.CPU = live.CPUParts{Whole: cpu.Whole, Workloads: cpu.Workloads, System: cpu.System, Idle: cpu.Idle}
	m.Memory = live.MemoryParts{Whole: int64(memory.Whole), Workloads: int64(memory.Workloads), System: int64(memory.System), Idle: int64(memory.Idle)}
	if power.Quality != usage.Absent {
		m.Energy = &live.Energy{Watts: power.Whole, Error: total[live.PowerError].Value, Idle: power.Idle, Quality: power.Quality}
	}
	m.Disk = flowOf(total[live.DiskRead], total[live.DiskWritten])
	m.Network = flowOf(total[live.NetworkRx], total[live.NetworkTx])
}

// flowOf is traffic both ways, nil where both are absent.
func flowOf(in, out live.Figure) *live.Flow {
	if in.Quality == usage.Absent && out.Quality == usage.Absent {
		return nil
	}
	return &live.Flow{In: in.Value, Out: out.Value}
}
