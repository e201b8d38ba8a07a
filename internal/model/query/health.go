package query

import "time"

// A Stream is a server's state of a stream of batches.
type Stream struct {
	Node, Name, Cluster string
	ID                  string // of the stream
	Next                uint64 // number of the expected batch
	Boot                string // boot id of the latest batch
	Opened, Seen        time.Time
}

// A StreamQuery requests streams, in the order of their ids.
type StreamQuery struct {
	Scope Scope
	Node  string // id or name of the one node; "" is all
	After string // id of the last stream of the previous page
	Limit int    // 0 is all
}

// An Alert is the state of a rule for a series.
type Alert struct {
	Rule        string
	State       string // "pending", "firing"
	Cluster     string // label; "" if none
	Labels      map[string]string
	Annotations map[string]string
	Since       time.Time // when the rule's condition began to hold
	Value       float64   // of the condition at the latest evaluation
	SilencedBy  []string  // ids of the silences that apply to it now
}

// A ServerHealth is a server's state since its start.
type ServerHealth struct {
	Violations int64     // conservation checks that failed: always a bug
	Conflicts  int64     // batches that contradicted a booked one
	Refused    int64     // batches and requests that were refused
	Missed     int64     // batches that the metrics did not store
	Queue      int64     // rows waiting to be booked
	Hours      time.Time // end of the minutes folded into hours; zero before the first
	Days       time.Time // end of the hours folded into days
	Bytes      int64     // of the ledger's database
}
