package v1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A FleetNode is a machine in its latest window, as a server tells it at /v1/rates.
type FleetNode struct {
	Node    string     `json:"node"` // its id
	Name    string     `json:"name"`
	Cluster string     `json:"cluster"`
	From    time.Time  `json:"from"`
	To      time.Time  `json:"to"`
	CPUs    int        `json:"cpus"`
	Rows    []live.Row `json:"workloads"`
}

// ParseFleet reads the answer of /v1/rates. The error wraps fault.ErrInvalid.
func ParseFleet(body []byte) ([]FleetNode, error) {
	var read struct {
		Nodes *[]struct {
			FleetNode
			Rows []rateRow `json:"workloads"`
		} `json:"nodes"`
	}
	err := json.Unmarshal(body, &read)
	if err == nil && read.Nodes == nil {
		err = fmt.Errorf("it has no nodes")
	}
	if err != nil {
		return nil, fmt.Errorf("rates: %w: %w", err, fault.ErrInvalid)
	}
	list := make([]FleetNode, 0, len(*read.Nodes))
	for _, n := range *read.Nodes {
		n.FleetNode.Rows = make([]live.Row, len(n.Rows))
		for i := range n.Rows {
			n.FleetNode.Rows[i] = n.Rows[i].liveRow()
		}
		list = append(list, n.FleetNode)
	}
	return list, nil
}

// A rateRow has averages over a window where that of a tick has whole numbers.
type rateRow struct {
	live.Row
	PIDs *float64 `json:"pids"`
}

func (r *rateRow) liveRow() live.Row {
	if r.PIDs != nil {
		n := int64(*r.PIDs + 0.5)
		r.Row.PIDs = &n
	}
	if strings.HasPrefix(r.Name, "/") {
		r.Path = r.Name // nothing better is known
	}
	return r.Row
}

// A Fleet is what a server told at a time.
type Fleet struct {
	Server string
	At     time.Time
	Nodes  []query.Node
	Rates  []FleetNode
	Only   string // id or name of the one node that is to be shown; "" is all
}

// Machine is the fleet as one machine. The rows of clusters, where there are more
// than one, and of nodes have nothing of their own. A node that is not heard, and one
// that is a guest in another, which has its figures, is there without workloads. The
// error, where Only is none of the nodes, wraps fault.ErrNotFound.
func (v Fleet) Machine() (*live.Machine, error) {
	f := &live.Fleet{Server: v.Server}
	m := &live.Machine{Time: v.At, Host: v.Server, Fleet: f}
	rates := make(map[string]*FleetNode, len(v.Rates))
	for i := range v.Rates {
		rates[v.Rates[i].Node] = &v.Rates[i]
	}
	var nodes []query.Node
	clusters := map[string]bool{}
	for _, n := range v.Nodes {
		if v.Only == "" || v.Only == n.ID || v.Only == n.Name {
			nodes = append(nodes, n)
			clusters[n.Cluster] = true
		}
	}
	if len(nodes) == 0 && v.Only != "" {
		return nil, fault.WithHint(fmt.Errorf("node %q: %w", v.Only, fault.ErrNotFound), "mete nodes lists those that there are")
	}
	slices.SortFunc(nodes, func(a, b query.Node) int {
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

// addNode appends a node and its workloads.
func (v Fleet) addNode(m *live.Machine, n *query.Node, r *FleetNode, parent workload.ID) {
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
		group.State = n.State + formatSince(r.To, v.At)
	}
	m.Rows = append(m.Rows, group)
	if r == nil {
		return
	}
	m.CPUs += r.CPUs
	m.Rows = append(m.Rows, nestRows(r, &group)...)
}

// formatSince says how long ago something was.
func formatSince(t, now time.Time) string {
	if t.IsZero() || !t.Before(now) {
		return ""
	}
	d := now.Sub(t)
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

// nestRows are the rows of a node, parents before children, those at the top below
// the row of the node.
func nestRows(n *FleetNode, group *live.Row) []live.Row {
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
		r := n.Rows[i]
		r.Parent, r.Node = parent, group.Name
		taken[i] = true
		out = append(out, r)
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
	for i := range n.Rows { // what is below itself by some mistake is lost nowhere
		if !taken[i] {
			take(i, group.ID)
		}
	}
	return out
}

// sumRows sums up the rows.
func sumRows(m *live.Machine) {
	var e live.Energy
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Group == "" && r.Kind != workload.System && r.Kind != workload.Idle {
			m.Fleet.Workloads++
		}
		sumCPU(&m.CPU, r)
		sumMemory(&m.Memory, r)
		m.Disk = addFlow(m.Disk, r.DiskRead, r.DiskWritten)
		m.Network = addFlow(m.Network, r.NetworkRx, r.NetworkTx)
		if r.Power == nil {
			continue
		}
		e.Watts += *r.Power
		e.Quality = max(e.Quality, r.Quality[live.Power])
		if r.PowerError != nil {
			e.Error += *r.PowerError
		}
		if r.Kind == workload.Idle {
			e.Idle += *r.Power
		}
	}
	if e.Quality != usage.Absent {
		m.Energy = &e
	}
}

func sumCPU(c *live.CPU, r *live.Row) {
	if r.CPU == nil {
		return
	}
	c.Whole += *r.CPU
	switch r.Kind {
	case workload.Idle:
		c.Idle += *r.CPU
	case workload.System:
		c.System += *r.CPU
	default:
		c.Workloads += *r.CPU
	}
}

func sumMemory(c *live.Memory, r *live.Row) {
	if r.Memory == nil {
		return
	}
	c.Whole += *r.Memory
	switch r.Kind {
	case workload.Idle:
		c.Idle += *r.Memory
	case workload.System:
		c.System += *r.Memory
	default:
		c.Workloads += *r.Memory
	}
}

// addFlow adds traffic to a flow.
func addFlow(f *live.Flow, in, out *float64) *live.Flow {
	if in == nil && out == nil {
		return f
	}
	if f == nil {
		f = &live.Flow{}
	}
	if in != nil {
		f.In += *in
	}
	if out != nil {
		f.Out += *out
	}
	return f
}
