package live

// The groups of a fleet.
const (
	Cluster = "cluster"
	Node    = "node"
)

// A Fleet is what machines have together that are shown as one.
type Fleet struct {
	Server    string `json:"server"` // that tells of them
	Nodes     int    `json:"nodes"`
	Stale     int    `json:"stale"`  // of these, not heard at present: their figures are absent
	Guests    int    `json:"guests"` // of these, virtual machines within the figures of others
	Workloads int    `json:"workload_count"`
}
