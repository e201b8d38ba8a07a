package v1

import (
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TopResources are what the busiest workloads are found by.
var TopResources = []string{"cpu", "memory", "power", "disk", "network"}

// TopValue is how much of one of TopResources a workload used a second, over a window of
// length seconds; false where that is absent.
func TopValue(top string, u *usage.Usage, length float64) (float64, usage.Quality, bool) {
	var sum float64
	q := usage.Absent
	for _, r := range resourcesOf[top] {
		if v, ok := u.Get(r); ok {
			sum, q = sum+r.Detail().Unit.Float(v), max(q, u.Quality.Get(r))
		}
	}
	if q == usage.Absent || length <= 0 {
		return 0, q, false
	}
	return sum / length, q, true
}

var resourcesOf = map[string][]usage.Resource{
	"cpu": {usage.CPU}, "memory": {usage.Memory}, "power": usage.Energies[:],
	"disk": {usage.DiskRead, usage.DiskWritten}, "network": {usage.NetworkRx, usage.NetworkTx},
}

// partsJSON is where the use of a resource goes; the whole is all of it.
type partsJSON struct {
	Workloads float64       `json:"workloads" doc:"of workloads"`
	System    float64       `json:"system" doc:"of the system"`
	Idle      float64       `json:"idle" doc:"of nobody"`
	Whole     float64       `json:"whole" doc:"all of it: the sum of the three"`
	Error     *float64      `json:"error,omitempty" doc:"by how much it may be off"`
	Quality   usage.Quality `json:"quality"`
}

// flowJSON is traffic both ways.
type flowJSON struct {
	In      float64       `json:"in" doc:"read or received"`
	Out     float64       `json:"out" doc:"written or sent"`
	Quality usage.Quality `json:"quality"`
}

// Present is what one node does, or several together. What is absent is null.
type Present struct {
	CPUs      int        `json:"cpus"`
	Workloads int        `json:"workloads" doc:"that used something"`
	CPU       *partsJSON `json:"cpu_cores" doc:"null where it is absent"`
	Memory    *partsJSON `json:"memory_bytes" doc:"null where it is absent"`
	Power     *partsJSON `json:"power_watts" doc:"null where it is absent"`
	Disk      *flowJSON  `json:"disk_bytes_per_second" doc:"null where it is absent"`
	Network   *flowJSON  `json:"network_bytes_per_second" doc:"null where it is absent"`
}

type nodeNowJSON struct {
	Node    string     `json:"node" doc:"id"`
	Name    string     `json:"name"`
	Cluster string     `json:"cluster"`
	State   string     `json:"state"`
	From    *time.Time `json:"from" doc:"start of its latest window; null where there is none that is fresh"`
	To      *time.Time `json:"to" doc:"end of that window"`
	Nested  bool       `json:"nested" doc:"it is a guest of another node here, and in no sum"`
	Present
}

type busyJSON struct {
	ID      workload.ID   `json:"workload" doc:"id"`
	Kind    workload.Kind `json:"kind"`
	Name    string        `json:"name"`
	Job     string        `json:"job"`
	Node    string        `json:"node" doc:"name of the node"`
	Cluster string        `json:"cluster"`
	Value   float64       `json:"value" doc:"cores, bytes, watts, or bytes a second"`
	Quality usage.Quality `json:"quality"`
}

type summaryJSON struct {
	At       *time.Time     `json:"at"`
	States   map[string]int `json:"states" doc:"nodes in each state"`
	Measured int            `json:"measured" doc:"nodes that are in the sum"`
	// NestedNodes are not, as they are guests of others here.
	NestedNodes int `json:"nested_nodes" doc:"nodes that are not, as they are guests of others here"`

	Sum   Present               `json:"sum"`
	Nodes []nodeNowJSON         `json:"nodes,omitempty" doc:"each node, where they were asked for"`
	Top   map[string][]busyJSON `json:"top,omitempty" doc:"the busiest workloads by cpu, memory, power, disk and network"`
}

// SummaryJSON writes what machines do at present: together, each by itself where
// nodes says so, and the busiest workloads.
func SummaryJSON(s *query.Summary, nodes bool) []byte {
	out := summaryJSON{At: timeOrNil(s.At), States: map[string]int{}}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		out.States[n.State]++
		own := presentOf(n)
		if !n.To.IsZero() {
			if n.Nested {
				out.NestedNodes++
			} else {
				out.Measured++
				out.Sum.addSummary(&own)
			}
		}
		if nodes {
			out.Nodes = append(out.Nodes, nodeNowJSON{n.Node, n.Name, n.Cluster, n.State, timeOrNil(n.From), timeOrNil(n.To), n.Nested, own})
		}
	}
	for _, top := range TopResources {
		for _, b := range s.Top[top] {
			if out.Top == nil {
				out.Top = map[string][]busyJSON{}
			}
			out.Top[top] = append(out.Top[top], busyJSON{b.ID, b.Kind, b.Name.Name, b.Job, b.NodeName, b.Cluster, round(b.Value), b.Quality})
		}
	}
	return append(marshal(out), '\n')
}

func presentOf(n *query.NodeSummary) Present {
	out := Present{CPUs: n.CPUs, Workloads: n.Rows}
	length := n.To.Sub(n.From).Seconds()
	parts := func(top string) *partsJSON {
		var v [3]float64
		q, some := usage.Absent, false
		for i := range v {
			var one usage.Quality
			var ok bool
			v[i], one, ok = TopValue(top, &n.Parts[i], length)
			q, some = max(q, one), some || ok
		}
		if !some {
			return nil
		}
		return &partsJSON{v[0], v[1], v[2], v[0] + v[1] + v[2], nil, q}
	}
	out.CPU, out.Memory, out.Power = parts("cpu"), parts("memory"), parts("power")
	if out.Power != nil {
		var off int64
		for i := range n.Parts {
			off += n.Parts[i].Amount[usage.EnergyError]
		}
		watts := usage.EnergyError.Detail().Unit.Float(off) / length
		out.Power.Error = &watts
	}
	out.Disk = flowOf(&n.Total, usage.DiskRead, usage.DiskWritten, length)
	out.Network = flowOf(&n.Total, usage.NetworkRx, usage.NetworkTx, length)
	return out
}

func flowOf(u *usage.Usage, in, out usage.Resource, length float64) *flowJSON {
	a, seen := u.Get(in)
	b, too := u.Get(out)
	if !seen || !too || length <= 0 {
		return nil
	}
	return &flowJSON{float64(a) / length, float64(b) / length, max(u.Quality.Get(in), u.Quality.Get(out))}
}

func (p *Present) addSummary(q *Present) {
	p.CPUs += q.CPUs
	p.Workloads += q.Workloads
	for _, both := range [][2]**partsJSON{{&p.CPU, &q.CPU}, {&p.Memory, &q.Memory}, {&p.Power, &q.Power}} {
		sum, one := both[0], *both[1]
		switch {
		case one == nil:
		case *sum == nil:
			first := *one
			if one.Error != nil {
				off := *one.Error
				first.Error = &off
			}
			*sum = &first
		default:
			(*sum).plus(one)
		}
	}
	for _, both := range [][2]**flowJSON{{&p.Disk, &q.Disk}, {&p.Network, &q.Network}} {
		sum, one := both[0], *both[1]
		switch {
		case one == nil:
		case *sum == nil:
			first := *one
			*sum = &first
		default:
			(*sum).In += one.In
			(*sum).Out += one.Out
			(*sum).Quality = max((*sum).Quality, one.Quality)
		}
	}
}

func (p *partsJSON) plus(q *partsJSON) {
	p.Workloads += q.Workloads
	p.System += q.System
	p.Idle += q.Idle
	p.Whole += q.Whole
	p.Quality = max(p.Quality, q.Quality)
	if p.Error != nil && q.Error != nil {
		*p.Error += *q.Error
	}
}
