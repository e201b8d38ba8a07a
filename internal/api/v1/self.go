package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
)

// selfJSON is what a job is told of itself, but for what it used in all.
type selfJSON struct {
	Format   int           `json:"format" doc:"of this form: a reader must not guess at a higher one"`
	ID       workload.ID   `json:"workload" doc:"id of who asks: 26 characters of base32"`
	Kind     workload.Kind `json:"kind"`
	Name     string        `json:"name" doc:"empty as long as nothing is booked"`
	Job      string        `json:"job"`
	User     string        `json:"user"`
	Project  string        `json:"project"`
	Node     string        `json:"node" doc:"id of the machine"`
	NodeName string        `json:"node_name"`
	Cluster  string        `json:"cluster"`
	Started  *time.Time    `json:"started_at" doc:"null where nobody told yet"`
	Ended    *time.Time    `json:"ended_at" doc:"null while it runs"`
	Exit     *int          `json:"exit_code" doc:"null while it runs"`
	First    *time.Time    `json:"first_at" doc:"start of the first minute with use; null where nothing is booked yet"`
	Last     *time.Time    `json:"last_at" doc:"end of the last one"`
	Through  *time.Time    `json:"complete_through" doc:"what was used up to then is in usage, and what is used later comes with a later window, of some seconds; null where nothing of the machine is booked yet"`
	Gaps     int           `json:"gaps" doc:"gaps of the machine that touch its life: where there are any, something may be missing"`
	// Latest is null where the machine sends nothing at present.
	Latest *selfLatestJSON `json:"latest" doc:"what it uses at present; null where its machine sends nothing now, or it did nothing"`
}

// selfLatestJSON is the latest window.
type selfLatestJSON struct {
	From  *time.Time         `json:"from" doc:"start of the latest window"`
	To    *time.Time         `json:"to" doc:"end of that window"`
	Rates live.WorkloadRates `json:"rates" doc:"in that window, as /v1/rates tells them of all"`
}

// SelfJSON writes what a job used in all its life, and what it uses at present, as
// one object.
func SelfJSON(s *query.Self) []byte {
	out := selfJSON{Format: formatVersion, ID: s.ID, Kind: s.Kind, Name: s.Name.Name, Job: s.Job, User: s.User, Project: s.Project,
		Node: s.Node, NodeName: s.NodeName, Cluster: s.Cluster, Started: timeOrNil(s.Started), Ended: timeOrNil(s.Ended), Exit: s.Exit,
		First: timeOrNil(s.First), Last: timeOrNil(s.Last), Through: timeOrNil(s.Through), Gaps: s.Gaps}
	if l := s.Latest; l != nil && len(l.Rows) == 1 {
		out.Latest = &selfLatestJSON{timeOrNil(l.From), timeOrNil(l.To), l.Rows[0]}
	}
	h := marshal(out)
	var b bytes.Buffer
	b.Write(h[:len(h)-1])
	b.WriteString(",\n\"usage\":")
	writeTotal(&b, &s.Usage, s.Usage.Covered, figures)
	b.WriteString("}\n")
	return b.Bytes()
}

// ParseSelf reads what SelfJSON wrote, but for what is used at present. Its errors
// wrap fault.ErrInvalid.
func ParseSelf(body []byte) (*query.Self, error) {
	var h struct {
		selfJSON
		Latest json.RawMessage            `json:"latest"`
		Usage  map[string]json.RawMessage `json:"usage"`
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
	}
	if h.Format < 1 || h.Format > formatVersion {
		return nil, fmt.Errorf("%w answer: format %d is not known, only up to %d", fault.ErrInvalid, h.Format, formatVersion)
	}
	total, err := parseTotal(h.Usage)
	if err != nil {
		return nil, fmt.Errorf("%w answer: usage: %w", fault.ErrInvalid, err)
	}
	return &query.Self{Node: h.Node, NodeName: h.NodeName, Cluster: h.Cluster,
		Name:  batch.Name{ID: h.ID, Kind: h.Kind, Name: h.Name, Job: h.Job, User: h.User, Project: h.Project, Started: timeOrZero(h.Started), Ended: timeOrZero(h.Ended), Exit: h.Exit},
		First: timeOrZero(h.First), Last: timeOrZero(h.Last), Through: timeOrZero(h.Through), Gaps: h.Gaps, Usage: total}, nil
}

// SelfAnswer is what a job used as an answer with it alone.
func SelfAnswer(s *query.Self) *query.Answer {
	a := &query.Answer{From: s.First, To: s.Last, By: []query.Dimension{query.ByNode, query.ByWorkload}, Gaps: s.Gaps, AveragedOver: s.Usage.Covered}
	if s.Usage.Present != 0 {
		a.Groups = []query.Group{{Keys: []string{s.NodeName, s.Name.Name}, Nodes: 1, First: s.First, Last: s.Last, Usage: s.Usage}}
	}
	return a
}

// SelfCSV writes what a job used in all as one row, with the keys of [CSV].
func SelfCSV(s *query.Self) []byte { return CSV(SelfAnswer(s)) }
