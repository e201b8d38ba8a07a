package v1

import (
	"io"
	"time"

	"mete.dev/mete/internal/model/query"
)

// A Health says how complete the measurements are.
type Health struct {
	From    *time.Time     `json:"from" doc:"start of the range of gaps and virtual machines"`
	To      *time.Time     `json:"to"`
	Nodes   map[string]int `json:"nodes" doc:"number of nodes in each state"`
	Streams int            `json:"streams" doc:"number of open streams"`
	Behind  float64        `json:"furthest_behind_seconds" doc:"of the nodes that send, how long ago the one that is furthest behind was booked, in seconds"`
	Gaps    []GapSum       `json:"gaps" nullable:"false" doc:"gaps by reason"`
	Alerts  map[string]int `json:"alerts" doc:"number of alerts in each state"`
	Shares  Shares         `json:"shares"`
	Server  *ServerHealth  `json:"server" doc:"null where the caller may not see all clusters"`
}

// Shares compares what hosts and guests report of shares of energy.
type Shares struct {
	Compared  int64 `json:"compared" doc:"number of shares of energy that a host and its guest both reported"`
	Differing int64 `json:"differing" doc:"number of those that were not equal: 0 where all is well"`
}

// A ServerHealth counts what went wrong in a server since its start.
type ServerHealth struct {
	Violations int64      `json:"conservation_violations" doc:"sums of parts that were not their whole: always a defect, of agent or server"`
	Conflicts  int64      `json:"conflicts" doc:"batches that contradict an accepted one"`
	Refused    int64      `json:"refused" doc:"batches and requests that were refused"`
	Missed     int64      `json:"metrics_missed" doc:"batches that the metrics took nothing of"`
	Queue      int64      `json:"queue_rows" doc:"rows that wait to be booked"`
	Hours      *time.Time `json:"hours_through" doc:"end of the minutes that are folded into hours; null before the first"`
	Days       *time.Time `json:"days_through" doc:"end of the hours that are folded into days; null before the first"`
	Bytes      int64      `json:"ledger_bytes" doc:"size of the ledger's database"`
}

// ServerHealthOf makes a ServerHealth; nil of nil.
func ServerHealthOf(s *query.ServerHealth) *ServerHealth {
	if s == nil {
		return nil
	}
	return &ServerHealth{Violations: s.Violations, Conflicts: s.Conflicts, Refused: s.Refused, Missed: s.Missed, Queue: s.Queue, Hours: timeOrNil(s.Hours), Days: timeOrNil(s.Days), Bytes: s.Bytes}
}

// WriteJSON implements [Document].
func (h *Health) WriteJSON(w io.Writer) error { return writeLine(w, h) }
