package v1

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/workload"
)

// A Self is the answer to a job or pod about its own use. That of a pod is the sum of the pod and its containers, beside
// what they reserve.
type Self struct {
	Format   int           `json:"format" doc:"version of this form: a reader must not guess at a higher one"`
	ID       workload.ID   `json:"workload" doc:"id of the calling job or pod: 26 characters of base32; empty until something is booked of a pod"`
	Kind     workload.Kind `json:"kind"`
	Name     string        `json:"name" doc:"empty until a window with it is booked"`
	Job      string        `json:"job"`
	User     string        `json:"user"`
	Project  string        `json:"project"`
	Node     string        `json:"node" doc:"id of the node; empty until something is booked of a pod"`
	NodeName string        `json:"node_name"`
	Cluster  string        `json:"cluster"`
	Started  *time.Time    `json:"started_at" doc:"null until it is reported"`
	Ended    *time.Time    `json:"ended_at" doc:"null while it runs"`
	Exit     *int          `json:"exit_code" doc:"null while it runs"`
	First    *time.Time    `json:"first_at" doc:"start of the first minute with use, or of what a pod reserves; null until one of them is booked"`
	Last     *time.Time    `json:"last_at" doc:"end of the last minute with either"`
	Through  *time.Time    `json:"complete_through" doc:"usage covers the time up to this instant; later use is booked with later windows of some seconds; null before the first batch of the node"`
	Gaps     int           `json:"gaps" doc:"number of gaps of the node that overlap its lifetime: if it is not 0, figures may be incomplete"`
	Latest   *SelfLatest   `json:"latest" doc:"its use at present; null if its node sends nothing at present or it used nothing"`
	Reserved json.Number   `json:"reserved_for_seconds" doc:"for how long it is known what a pod reserves, up to the last whole minute; 0 of a job"`
	Usage    *Figures      `json:"usage" line:"own" doc:"its use over its lifetime, as far as it is booked, and what a pod reserves and does not use; averages are over covered_seconds, those of what it reserves, is limited to or does not use over reserved_for_seconds; null until something is booked"`

	reservedOver time.Duration
}

// A SelfLatest is what a job or pod used in the latest window of its node.
type SelfLatest struct {
	From  *time.Time         `json:"from" doc:"start of the latest window"`
	To    *time.Time         `json:"to" doc:"end of that window"`
	Rates live.WorkloadRates `json:"rates" doc:"rates in that window, as /v1/rates has them"`
}

// SelfOf makes a Self.
func SelfOf(s *query.Self) *Self {
	out := &Self{Format: formatVersion, ID: s.ID, Kind: s.Kind, Name: s.Name.Name, Job: s.Job, User: s.User, Project: s.Project,
		Node: s.Node, NodeName: s.NodeName, Cluster: s.Cluster, Started: timeOrNil(s.Started), Ended: timeOrNil(s.Ended), Exit: s.Exit,
		First: timeOrNil(s.First), Last: timeOrNil(s.Last), Through: timeOrNil(s.Through), Gaps: s.Gaps}
	if l := s.Latest; l != nil && len(l.Rows) == 1 {
		out.Latest = &SelfLatest{timeOrNil(l.From), timeOrNil(l.To), l.Rows[0]}
	}
	out.reservedOver, out.Reserved = s.Reserved, json.Number(seconds(s.Reserved))
	out.Usage = (&Usage{over: duration(s.Usage.Covered), reservedOver: s.Reserved, figures: allFigures}).totalOf(&s.Usage)
	return out
}

// WriteJSON implements [Document].
func (s *Self) WriteJSON(w io.Writer) error { return writeDocument(w, s, nil) }

// WriteCSV implements [Table]: one row with what it used in all, as a [Usage] has it.
func (s *Self) WriteCSV(w io.Writer) error { return s.AsUsage().WriteCSV(w) }

// UnmarshalJSON reads what WriteJSON wrote. Its errors wrap fault.ErrInvalid.
func (s *Self) UnmarshalJSON(body []byte) error {
	type plain Self // without methods
	read := plain{}
	if err := json.Unmarshal(body, &read); err != nil {
		return fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
	}
	if read.Format < 1 || read.Format > formatVersion {
		return fmt.Errorf("%w answer: format %d is not known, only up to %d", fault.ErrInvalid, read.Format, formatVersion)
	}
	*s = Self(read)
	if read.Reserved != "" { // a server of before it has none
		over, err := unit.ParseSum(string(read.Reserved), unit.Nanosecond)
		if err != nil {
			return fmt.Errorf("%w answer: reserved_for_seconds: %w", fault.ErrInvalid, err)
		}
		s.reservedOver = duration(over)
	}
	return nil
}

// AsUsage is what the job or pod used as an answer with one group, or none where nothing is booked.
func (s *Self) AsUsage() *Usage {
	u := &Usage{Format: formatVersion, By: []query.Dimension{query.ByNode, query.ByWorkload}, Gaps: s.Gaps, Idle: noPolicy, Nested: noPolicy, Total: s.Usage, figures: allFigures, reservedOver: s.reservedOver}
	if s.First != nil {
		u.From = *s.First
	}
	if s.Last != nil {
		u.To = *s.Last
	}
	if s.Usage != nil {
		u.over = duration(s.Usage.Covered)
		u.Groups = []Group{{Keys: []string{s.NodeName, s.Name}, Nodes: 1, First: s.First, Last: s.Last, Figures: *s.Usage}}
	}
	u.AveragedOver = json.Number(seconds(u.over))
	return u
}
