package v1

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
)

// A Node is a machine as a ledger knows it.
type Node struct {
	ID        string     `json:"node" doc:"id: a ULID, assigned when the node enrolled"`
	Name      string     `json:"name" doc:"host name of the machine"`
	Cluster   string     `json:"cluster" doc:"cluster of the token that it enrolled with"`
	State     string     `json:"state" doc:"live: its data is complete up to the last minute; behind: it sends, but later than that; silent: no data arrives; revoked: it may not send"`
	MachineID string     `json:"machine_id" doc:"machine id of the operating system; empty where the caller sees some clusters only"`
	Boot      string     `json:"boot" doc:"id of its latest boot; empty where the caller sees some clusters only"`
	CPUs      int        `json:"cpus" doc:"online CPUs; 0 where only jobs are measured"`
	Streams   int        `json:"streams" doc:"number of open streams"`
	Enrolled  *time.Time `json:"enrolled_at" doc:"null where the node did not enroll itself"`
	Through   *time.Time `json:"booked_through" doc:"end of the latest booked window; null before the first batch"`
	Revoked   *time.Time `json:"revoked_at" doc:"null where it is not revoked"`
	Source    string     `json:"source" doc:"id of the server below that reports it; empty where it sends its own batches"`
	Nested    *Nesting   `json:"nested_in" doc:"the node in which it is a guest at present; null where the caller can see none"`
}

// A Nesting says in which other node a node is a guest.
type Nesting struct {
	Host     string      `json:"node" csv:"nested_in" doc:"id of the host"`
	HostName string      `json:"name" csv:"nested_in_name" doc:"name of the host"`
	Workload workload.ID `json:"workload" csv:"nested_in_workload" doc:"id of the guest's workload on the host; empty where that has no name yet"`
	Name     string      `json:"workload_name" csv:"-" doc:"name of that workload"`
	Since    *time.Time  `json:"since" csv:"-" doc:"time of the first equal share of energy; null where it is not known here"`
	Seen     *time.Time  `json:"seen_at" csv:"-" doc:"time of the latest equal share"`
}

// ListKey implements [Element].
func (Node) ListKey() string { return "nodes" }

// NodeOf makes a Node.
func NodeOf(n *query.Node) Node {
	out := Node{ID: n.ID, Name: n.Name, Cluster: n.Cluster, State: n.State, MachineID: n.MachineID, Boot: n.Boot, CPUs: n.CPUs, Streams: n.Streams,
		Enrolled: timeOrNil(n.Enrolled), Through: timeOrNil(n.Through), Revoked: timeOrNil(n.Revoked), Source: n.Source}
	if in := n.Nested; in != nil {
		out.Nested = &Nesting{Host: in.Host, HostName: in.HostName, Workload: in.Workload, Name: in.Name, Since: timeOrNil(in.Since), Seen: timeOrNil(in.Seen)}
	}
	return out
}

// A Source is a server below, which reports its nodes.
type Source struct {
	ID       string     `json:"source" doc:"id"`
	Name     string     `json:"name"`
	Cluster  string     `json:"cluster"`
	State    string     `json:"state" doc:"a state as nodes have it"`
	Nodes    int        `json:"nodes" doc:"number of nodes that it reports"`
	Pages    uint64     `json:"pages" doc:"number of pages that were taken from it"`
	Epoch    string     `json:"epoch" doc:"epoch of its ledger from which the latest page was taken"`
	Enrolled *time.Time `json:"enrolled_at"`
	Seen     *time.Time `json:"seen_at" doc:"when the latest page was taken"`
	Through  *time.Time `json:"booked_through" doc:"end of the latest window that is booked there, of any of its nodes"`
	Revoked  *time.Time `json:"revoked_at" doc:"null where it is not revoked"`
}

// ListKey implements [Element].
func (Source) ListKey() string { return "sources" }

// SourceOf makes a Source.
func SourceOf(s *query.Source) Source {
	return Source{ID: s.ID, Name: s.Name, Cluster: s.Cluster, State: s.State, Nodes: s.Nodes, Pages: s.Pages, Epoch: s.Epoch,
		Enrolled: timeOrNil(s.Enrolled), Seen: timeOrNil(s.Seen), Through: timeOrNil(s.Through), Revoked: timeOrNil(s.Revoked)}
}

// A Cluster is a named set of nodes.
type Cluster struct {
	Name    string         `json:"cluster" doc:"name; empty for the nodes without a cluster"`
	Nodes   int            `json:"nodes"`
	Nested  int            `json:"nested_nodes" doc:"number of nodes that are guests of others"`
	States  map[string]int `json:"states" doc:"number of nodes in each state"`
	CPUs    int            `json:"cpus" doc:"CPUs of the nodes, except guests"`
	Through *time.Time     `json:"booked_through" doc:"end of the latest booked window of any of its nodes; null before the first batch"`
}

// ListKey implements [Element].
func (Cluster) ListKey() string { return "clusters" }

// ClustersOf groups nodes by their clusters, in the order of names.
func ClustersOf(nodes []query.Node) []Cluster {
	found := map[string]*Cluster{}
	for i := range nodes {
		n := &nodes[i]
		c := found[n.Cluster]
		if c == nil {
			c = &Cluster{Name: n.Cluster, States: map[string]int{}}
			found[n.Cluster] = c
		}
		c.Nodes++
		c.States[n.State]++
		if n.Nested != nil {
			c.Nested++
		} else {
			c.CPUs += n.CPUs
		}
		if t := timeOrNil(n.Through); t != nil && (c.Through == nil || t.After(*c.Through)) {
			c.Through = t
		}
	}
	var out []Cluster
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[name])
	}
	return out
}

// A Stream is a stream of batches of a node.
type Stream struct {
	ID      string     `json:"stream" doc:"id: 32 hexadecimal digits"`
	Node    string     `json:"node" doc:"id of the node that sends it"`
	Name    string     `json:"name" doc:"name of the node"`
	Cluster string     `json:"cluster"`
	Next    string     `json:"next" doc:"number of the batch that the server expects next: all before it are booked"`
	Boot    string     `json:"boot" doc:"id of the boot in which the latest batch was measured; empty where the caller sees some clusters only"`
	Opened  *time.Time `json:"opened_at" doc:"when its first batch was booked"`
	Seen    *time.Time `json:"seen_at" doc:"when its latest batch was booked"`
}

// ListKey implements [Element].
func (Stream) ListKey() string { return "streams" }

// StreamOf makes a Stream.
func StreamOf(s *query.Stream) Stream {
	return Stream{ID: s.ID, Node: s.Node, Name: s.Name, Cluster: s.Cluster, Next: strconv.FormatUint(s.Next, 10), Boot: s.Boot, Opened: timeOrNil(s.Opened), Seen: timeOrNil(s.Seen)}
}
