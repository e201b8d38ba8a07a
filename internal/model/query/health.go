package query

import "time"

// A Cluster is the nodes of one cluster together.
type Cluster struct {
	Name    string
	Nodes   int
	Nested  int            // how many of them are guests of others
	States  map[string]int // nodes in each state
	CPUs    int            // of nodes that are no guests
	Through time.Time      // up to when the furthest of them is booked
}

// A Stream is what a server has of a stream of batches.
type Stream struct {
	Node, Name, Cluster string
	ID                  string // of the stream
	Next                uint64 // number of the batch that is wanted
	Boot                string // in which the latest batch was measured
	Opened, Seen        time.Time
}

// An Alert is what a rule says of a series.
type Alert struct {
	Rule        string
	State       string // "pending", "firing"
	Cluster     string // that it is labeled with; "" is none
	Labels      map[string]string
	Annotations map[string]string
	Since       time.Time // from when on the rule's condition held
	Value       float64   // of the condition, when it was evaluated last
}

// A ServerHealth is how a server is doing, since its start.
type ServerHealth struct {
	Violations int64     // sums of parts that were not their whole: always a defect
	Conflicts  int64     // batches that contradicted what was taken
	Refused    int64     // batches and requests that were refused
	Missed     int64     // batches of which the metrics took nothing
	Queue      int64     // rows that wait to be booked
	Hours      time.Time // up to when minutes are folded into hours; zero before the first
	Days       time.Time // the same of hours into days
	Bytes      int64     // of the ledger's database
}

// Health is how well is measured what is measured.
type Health struct {
	From, To  time.Time // the range that gaps and virtual machines are of
	States    map[string]int
	Streams   int
	Behind    time.Duration // by how much the node that is furthest behind is; of those that send
	Gaps      []GapSum
	Alerts    map[string]int // by state
	Compared  int64          // shares of energy that a host and its guest both told of
	Differing int64          // those of them that were not equal
	Server    *ServerHealth  // nil for who may not see all clusters
}

// A GapSum is all gaps of one reason.
type GapSum struct {
	Gap    Gap // an example: the latest
	Count  int
	Length time.Duration // of all of them; overlapping ones count twice
	Nodes  int
}
