package v1

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/query"
)

type healthJSON struct {
	From    *time.Time     `json:"from" doc:"of the range that gaps and virtual machines are of"`
	To      *time.Time     `json:"to"`
	Nodes   map[string]int `json:"nodes" doc:"nodes in each state"`
	Streams int            `json:"streams" doc:"streams that are open"`
	Behind  float64        `json:"furthest_behind_seconds" doc:"how long ago the node that is furthest behind was booked, of those that send, in seconds"`
	Gaps    []gapSumJSON   `json:"gaps" nullable:"false" doc:"by reason"`
	Alerts  map[string]int `json:"alerts" doc:"alerts in each state"`
	VMs     sharesJSON     `json:"shares"`
	Server  *serverJSON    `json:"server" doc:"null for who may not see all clusters"`
}

type sharesJSON struct {
	Compared  int64 `json:"compared" doc:"shares of energy that a host and its guest both told of"`
	Differing int64 `json:"differing" doc:"those of them that were not equal: 0 where all is well"`
}

type gapSumJSON struct {
	Reason  string  `json:"reason"`
	Why     string  `json:"why" doc:"what happened, for people"`
	Meaning string  `json:"meaning" doc:"what that means for the figures, for people"`
	Count   int     `json:"count"`
	Nodes   int     `json:"nodes" doc:"that have such gaps"`
	Seconds float64 `json:"seconds" doc:"length of all of them, in seconds; overlapping ones count twice"`
}

type serverJSON struct {
	Violations int64      `json:"conservation_violations" doc:"sums of parts that were not their whole: always a defect, of agent or server"`
	Conflicts  int64      `json:"conflicts" doc:"batches that contradicted what was taken"`
	Refused    int64      `json:"refused" doc:"batches and requests that were refused"`
	Missed     int64      `json:"metrics_missed" doc:"batches of which the metrics took nothing"`
	Queue      int64      `json:"queue_rows" doc:"rows that wait to be booked"`
	Hours      *time.Time `json:"hours_through" doc:"up to when minutes are folded into hours; null before the first"`
	Days       *time.Time `json:"days_through" doc:"up to when hours are folded into days; null before the first"`
	Bytes      int64      `json:"ledger_bytes"`
}

// GapSums puts gaps together by reason. Its zero value has none.
type GapSums struct {
	found map[string]*query.GapSum
	nodes map[[2]string]bool
}

// Add adds a gap. Corrections of clocks are no gaps, and have no length.
func (s *GapSums) Add(g *query.Gap) {
	if s.found == nil {
		s.found, s.nodes = map[string]*query.GapSum{}, map[[2]string]bool{}
	}
	reason, _ := GapCause(g)
	sum := s.found[reason]
	if sum == nil {
		sum = &query.GapSum{Gap: *g}
		s.found[reason] = sum
	}
	if g.From.After(sum.Gap.From) {
		sum.Gap = *g
	}
	sum.Count++
	if at := [2]string{reason, g.Node}; !s.nodes[at] {
		s.nodes[at] = true
		sum.Nodes++
	}
	if g.Shift == 0 {
		sum.Length += g.To.Sub(g.From)
	}
}

// List is a sum for each reason, the longest first.
func (s *GapSums) List() (out []query.GapSum) {
	for _, reason := range slices.Sorted(maps.Keys(s.found)) {
		out = append(out, *s.found[reason])
	}
	slices.SortStableFunc(out, func(a, b query.GapSum) int { return cmp.Compare(b.Length, a.Length) })
	return out
}

// HealthJSON writes how well is measured.
func HealthJSON(h *query.Health) []byte {
	out := healthJSON{From: timeOrNil(h.From), To: timeOrNil(h.To), Nodes: h.States, Streams: h.Streams, Behind: h.Behind.Seconds(), Alerts: h.Alerts,
		VMs: sharesJSON{h.Compared, h.Differing}}
	out.Gaps = mapSlice(h.Gaps, func(s query.GapSum) gapSumJSON {
		reason, c := GapCause(&s.Gap)
		return gapSumJSON{reason, c.Why, c.Meaning, s.Count, s.Nodes, s.Length.Seconds()}
	})
	if s := h.Server; s != nil {
		out.Server = &serverJSON{s.Violations, s.Conflicts, s.Refused, s.Missed, s.Queue, timeOrNil(s.Hours), timeOrNil(s.Days), s.Bytes}
	}
	return append(marshal(out), '\n')
}
