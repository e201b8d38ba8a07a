package live

import (
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Parts is the use of a resource by workloads and by the system, and its unused rest.
type Parts struct {
	Workloads float64       `json:"workloads" doc:"of workloads"`
	System    float64       `json:"system" doc:"of the system"`
	Idle      float64       `json:"idle" doc:"not used"`
	Whole     float64       `json:"whole" doc:"all of it: the sum of the three"`
	Error     *float64      `json:"error,omitempty" doc:"by how much it may be off"`
	Quality   usage.Quality `json:"quality"`
}

// Add adds the use by a workload of that kind. An absent figure adds nothing.
func (p *Parts) Add(kind workload.Kind, f Figure) {
	if f.Quality == usage.Absent {
		return
	}
	switch kind {
	case workload.Idle:
		p.Idle += f.Value
	case workload.System:
		p.System += f.Value
	default:
		p.Workloads += f.Value
	}
	p.Whole += f.Value
	p.Quality = max(p.Quality, f.Quality)
}

// plus returns the sum; nil is absent, and adds nothing.
func (p *Parts) plus(q *Parts) *Parts {
	switch {
	case q == nil:
		return p
	case p == nil:
		return q
	}
	sum := Parts{p.Workloads + q.Workloads, p.System + q.System, p.Idle + q.Idle, p.Whole + q.Whole, p.Error, max(p.Quality, q.Quality)}
	if p.Error != nil && q.Error != nil {
		off := *p.Error + *q.Error
		sum.Error = &off
	}
	return &sum
}

// Traffic is bytes per second both ways.
type Traffic struct {
	In      float64       `json:"in" doc:"read or received"`
	Out     float64       `json:"out" doc:"written or sent"`
	Quality usage.Quality `json:"quality"`
}

// plus returns the sum; nil is absent, and adds nothing.
func (f *Traffic) plus(g *Traffic) *Traffic {
	switch {
	case g == nil:
		return f
	case f == nil:
		return g
	}
	return &Traffic{f.In + g.In, f.Out + g.Out, max(f.Quality, g.Quality)}
}

// Present is the present use of one node, or of several together. A nil pointer means that the
// figure is absent. The values that the pointers refer to are immutable.
type Present struct {
	CPUs      int      `json:"cpus"`
	Workloads int      `json:"workloads" doc:"that used something"`
	CPU       *Parts   `json:"cpu_cores" doc:"null where it is absent"`
	Memory    *Parts   `json:"memory_bytes" doc:"null where it is absent"`
	Power     *Parts   `json:"power_watts" doc:"null where it is absent"`
	Disk      *Traffic `json:"disk_bytes_per_second" doc:"null where it is absent"`
	Network   *Traffic `json:"network_bytes_per_second" doc:"null where it is absent"`
}

// PresentOf returns the use of a node by a window of that length: parts holds the use by workloads,
// the use by the system, and the unused capacity. total is the use of the node's disks and
// interfaces.
func PresentOf(parts [3]usage.Usage, total *usage.Usage, length time.Duration) (out Present) {
	if length <= 0 {
		return out
	}
	seconds := length.Seconds()
	var figures [3]Figures
	var off int64
	for i := range parts {
		figures[i] = FiguresOf(&parts[i])
		off += parts[i].Amount[usage.EnergyError]
	}
	of := func(f Field) *Parts {
		v := [3]float64{figures[0][f].Value / seconds, figures[1][f].Value / seconds, figures[2][f].Value / seconds}
		q := max(figures[0][f].Quality, figures[1][f].Quality, figures[2][f].Quality)
		if q == usage.Absent {
			return nil
		}
		return &Parts{v[0], v[1], v[2], v[0] + v[1] + v[2], nil, q}
	}
	out.CPU, out.Memory, out.Power = of(CPU), of(Memory), of(Power)
	if out.Power != nil {
		watts := usage.EnergyError.Detail().Unit.Float(off) / seconds
		out.Power.Error = &watts
	}
	out.Disk = trafficOf(total, usage.DiskRead, usage.DiskWritten, seconds)
	out.Network = trafficOf(total, usage.NetworkRx, usage.NetworkTx, seconds)
	return out
}

func trafficOf(u *usage.Usage, in, out usage.Resource, seconds float64) *Traffic {
	a, seen := u.Get(in)
	b, too := u.Get(out)
	if !seen || !too {
		return nil
	}
	return &Traffic{float64(a) / seconds, float64(b) / seconds, max(u.Quality.Get(in), u.Quality.Get(out))}
}

// add adds what another node does.
func (p *Present) add(q *Present) {
	p.CPUs += q.CPUs
	p.Workloads += q.Workloads
	p.CPU, p.Memory, p.Power = p.CPU.plus(q.CPU), p.Memory.plus(q.Memory), p.Power.plus(q.Power)
	p.Disk, p.Network = p.Disk.plus(q.Disk), p.Network.plus(q.Network)
}

// NodePresent is what one node does by its latest window.
type NodePresent struct {
	Node    string     `json:"node" doc:"id"`
	Name    string     `json:"name"`
	Cluster string     `json:"cluster"`
	State   string     `json:"state"`
	From    *time.Time `json:"from" doc:"start of its latest window; null without a fresh window"`
	To      *time.Time `json:"to" doc:"end of that window"`
	Nested  bool       `json:"nested" doc:"it is a guest of another node here, and in no sum"`
	Present
}

// TopWorkload is one of the workloads that use most of something.
type TopWorkload struct {
	ID      workload.ID   `json:"workload" doc:"id"`
	Kind    workload.Kind `json:"kind"`
	Name    string        `json:"name"`
	Job     string        `json:"job"`
	Node    string        `json:"node" doc:"name of the node"`
	Cluster string        `json:"cluster"`
	Value   float64       `json:"value" doc:"cores, bytes, watts, or bytes a second"`
	Quality usage.Quality `json:"quality"`
}

// TopKeys are the keys of [Summary.Top].
var TopKeys = [...]string{"cpu", "memory", "power", "disk", "network"}

// Top returns the figure by which the busiest workloads under a key of [TopKeys] are found.
func (a *Figures) Top(key string) Figure {
	switch key {
	case "cpu":
		return a[CPU]
	case "memory":
		return a[Memory]
	case "power":
		return a[Power]
	case "disk":
		return a.Disk()
	case "network":
		return a.Network()
	}
	panic("live: nothing is busiest by " + key)
}

// Summary is what machines do at present: the JSON of /v1/summary.
type Summary struct {
	At       time.Time      `json:"at" nullable:"true"`
	States   map[string]int `json:"states" doc:"nodes in each state"`
	Measured int            `json:"measured" doc:"nodes that are in the sum"`
	// NestedNodes are not, as they are guests of others here.
	NestedNodes int `json:"nested_nodes" doc:"nodes that are not, as they are guests of others here"`

	Sum   Present                  `json:"sum"`
	Nodes []NodePresent            `json:"nodes,omitempty" doc:"each node, only with the parameter nodes"`
	Top   map[string][]TopWorkload `json:"top,omitempty" doc:"the busiest workloads by cpu, memory, power, disk and network"`
}

// NewSummary returns an empty summary.
func NewSummary(at time.Time) *Summary {
	return &Summary{At: at.UTC(), States: map[string]int{}}
}

// Add adds a node. The sum includes it if it has a fresh window and is not a guest of another node.
func (s *Summary) Add(n *NodePresent) {
	s.Nodes = append(s.Nodes, *n)
	s.States[n.State]++
	switch {
	case n.To == nil:
	case n.Nested:
		s.NestedNodes++
	default:
		s.Measured++
		s.Sum.add(&n.Present)
	}
}
