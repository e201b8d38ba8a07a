package v1

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A Gap is a time for which data is missing or incomplete, or the moment from which a
// node's clock is corrected: then Shift is set, From and To are that moment, and nothing
// is missing.
type Gap struct {
	Node    string       `json:"node" doc:"id of the node"`
	Name    string       `json:"name" doc:"name of the node"`
	From    *time.Time   `json:"from"`
	To      *time.Time   `json:"to"`
	Seconds Seconds      `json:"seconds" doc:"length, in seconds"`
	Reason  string       `json:"reason" doc:"the reason, or clock-shifted"`
	Why     string       `json:"why" doc:"what happened, in words"`
	Meaning string       `json:"meaning" doc:"what that means for the figures, in words"`
	Detail  string       `json:"detail"`
	Booked  *time.Time   `json:"booked_at" doc:"when the server learned of it"`
	Shift   *json.Number `json:"shift_seconds,omitempty" doc:"correction of a wrong clock, in seconds: then from and to are when it began, and there is no gap"`
}

// ListKey implements [Element].
func (Gap) ListKey() string { return "gaps" }

// GapOf makes a Gap.
func GapOf(g *query.Gap) Gap {
	reason, c := causeOf(g)
	out := Gap{Node: g.Node, Name: g.Name, From: timeOrNil(g.From), To: timeOrNil(g.To), Seconds: Seconds(g.To.Sub(g.From)), Reason: reason, Why: c.why, Meaning: c.meaning,
		Detail: g.Detail, Booked: timeOrNil(g.Booked)}
	if g.Shift != 0 {
		shift := json.Number(unit.Nanosecond.Decimal(int64(g.Shift)))
		out.Shift = &shift
	}
	return out
}

// Seconds is a length of time that JSON has as a number of seconds, rounded to 53 bits,
// and CSV exactly.
type Seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// MarshalText implements encoding.TextMarshaler.
func (s Seconds) MarshalText() ([]byte, error) {
	return []byte(unit.Nanosecond.Decimal(int64(s))), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seconds) UnmarshalJSON(body []byte) error {
	var v float64
	err := json.Unmarshal(body, &v)
	switch ns := math.Round(v * 1e9); {
	case ns >= math.MaxInt64: // 2^63 as a float64: not an int64
		*s = math.MaxInt64
	case ns <= math.MinInt64:
		*s = math.MinInt64
	default:
		*s = Seconds(ns)
	}
	return err
}

// A cause explains a reason for a gap.
type cause struct{ why, meaning string }

var causes = map[usage.Reason]cause{
	usage.UnknownReason: {"the reason is not known", "figures of that time may be too low"},
	usage.Rebooted: {"the machine went down or restarted",
		"the use after the last reading before that is lost: figures are too low by that"},
	usage.Unwatched: {"no meter was running",
		"CPU is complete; disk and network are complete if the kernel counts them by itself; memory is not known for that time, and the use of a workload that ended meanwhile is in the group above it"},
	usage.Overflow: {"the agent's disk space for unsent figures was full",
		"figures of that time are lost: sums are too low by them"},
	usage.Corrupt: {"the agent's stored figures were damaged",
		"figures of that time are lost: sums are too low by them"},
	usage.Forgotten: {"the server missed figures that the agent no longer kept",
		"figures of that time are lost: sums are too low by them"},
	usage.StateLost: {"the agent lost its state and started without it",
		"the use in that time is not known: sums are too low by it"},
	usage.Refused: {"the server refused data that the agent sent",
		"figures of that time are not booked; the agent has put them aside"},
	usage.Killed: {"the meter of a job was killed",
		"the use of that job afterwards is not known: its sums are too low by it"},
	usage.Overlapped: {"the agent was away, and some of that time is booked already, as from a state that was restored",
		"the use in that time is not known: sums are too low by it"},
	usage.MeterFailed: {"an energy meter could not be used",
		"energy of that time is from other meters of the machine or from a model; nothing else is missing"},
}

// clockShifted is the reason of a clock correction.
const clockShifted = "clock-shifted"

// causeOf returns the reason of a gap as it is in JSON, and its explanation.
func causeOf(g *query.Gap) (reason string, c cause) {
	if g.Shift != 0 {
		return clockShifted, cause{"the clock was wrong and is shifted by " + formatShift(g.Shift) + " from here on",
			"nothing is missing: what was measured from then on is booked at the time of the server's clock"}
	}
	c, ok := causes[g.Reason]
	if !ok {
		c = causes[usage.UnknownReason]
	}
	return g.Reason.String(), c
}

// formatShift writes a shift in whole seconds.
func formatShift(d time.Duration) string {
	s := d.Round(time.Second).String()
	if d > 0 {
		s = "+" + s
	}
	return s
}

// A GapSum is all gaps of one reason.
type GapSum struct {
	Reason  string  `json:"reason"`
	Why     string  `json:"why" doc:"what happened, in words"`
	Meaning string  `json:"meaning" doc:"what that means for the figures, in words"`
	Count   int     `json:"count" doc:"number of gaps"`
	Nodes   int     `json:"nodes" doc:"number of nodes that have such gaps"`
	Seconds float64 `json:"seconds" doc:"sum of their lengths, in seconds; overlapping ones count twice"`
}

// GapSums sums gaps by reason. Its zero value has none.
type GapSums struct {
	found map[string]*gapSum
	nodes map[[2]string]bool
}

// A gapSum is a sum in progress. Its explanation is that of the latest gap: that of a clock correction
// contains the shift.
type gapSum struct {
	sum    GapSum
	latest time.Time
	length time.Duration
}

// Add adds a gap. A clock correction counts under its own reason and adds no length.
func (s *GapSums) Add(g *query.Gap) {
	if s.found == nil {
		s.found, s.nodes = map[string]*gapSum{}, map[[2]string]bool{}
	}
	reason, c := causeOf(g)
	sum := s.found[reason]
	if sum == nil {
		sum = &gapSum{latest: g.From, sum: GapSum{Reason: reason, Why: c.why, Meaning: c.meaning}}
		s.found[reason] = sum
	}
	if g.From.After(sum.latest) {
		sum.latest, sum.sum.Why, sum.sum.Meaning = g.From, c.why, c.meaning
	}
	sum.sum.Count++
	if at := [2]string{reason, g.Node}; !s.nodes[at] {
		s.nodes[at] = true
		sum.sum.Nodes++
	}
	if g.Shift == 0 {
		sum.length += g.To.Sub(g.From)
	}
}

// List returns a sum for each reason, the longest first.
func (s *GapSums) List() []GapSum {
	list := make([]*gapSum, 0, len(s.found))
	for _, reason := range slices.Sorted(maps.Keys(s.found)) {
		list = append(list, s.found[reason])
	}
	slices.SortStableFunc(list, func(a, b *gapSum) int { return cmp.Compare(b.length, a.length) })
	return mapSlice(list, func(g *gapSum) GapSum {
		g.sum.Seconds = g.length.Seconds()
		return g.sum
	})
}
