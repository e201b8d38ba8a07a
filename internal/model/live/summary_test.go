package live_test

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
)

// A guest of another node is listed, and is in no sum: its host's use has it.
func TestSummaryLeavesGuestsOut(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := live.NewSummary(at)
	for _, nested := range []bool{false, true} {
		var parts [3]usage.Usage
		parts[0].Put(usage.CPU, 5e9, usage.Measured)
		n := live.NodePresent{State: "live", From: &at, To: &at, Nested: nested, Present: live.PresentOf(parts, &usage.Usage{}, 10*time.Second)}
		n.CPUs, n.Workloads = 2, 3
		s.Add(&n)
	}
	if s.Measured != 1 || s.NestedNodes != 1 || s.Sum.CPUs != 2 || s.Sum.Workloads != 3 || s.Sum.CPU.Workloads != 0.5 ||
		len(s.Nodes) != 2 || s.Nodes[0].Nested || !s.Nodes[1].Nested {
		t.Errorf("%+v", s)
	}
}
