package query

import "time"

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
