package live

// Groups of a fleet.
const (
	Cluster = "cluster"
	Node    = "node"
)

// A Fleet summarizes machines that are shown together.
type Fleet struct {
	Server    string `json:"server"` // URL of the server
	Nodes     int    `json:"nodes"`
	Stale     int    `json:"stale"`  // nodes not heard from: their figures are absent
	Guests    int    `json:"guests"` // nodes whose figures are within others
	Workloads int    `json:"workload_count"`
}
