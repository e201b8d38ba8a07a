package v1_test

import (
	"encoding/json"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// A guest of another node is listed, and is in no sum: its host's use has it.
func TestSummaryLeavesGuestsOut(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := func(name string, nested bool) query.NodeSummary {
		n := query.NodeSummary{Node: name, Name: name, State: "live", From: at, To: at.Add(10 * time.Second), CPUs: 2, Rows: 3, Nested: nested}
		n.Parts[0].Put(usage.CPU, 5e9, usage.Measured)
		return n
	}
	var m struct {
		Measured int
		Nested   int `json:"nested_nodes"`
		Sum      struct {
			CPUs, Workloads int
			CPU             struct{ Workloads float64 } `json:"cpu_cores"`
		}
		Nodes []struct {
			Name   string
			Nested bool
		}
	}
	if err := json.Unmarshal(v1.SummaryJSON(&query.Summary{At: at, Nodes: []query.NodeSummary{node("host", false), node("guest", true)}}, true), &m); err != nil {
		t.Fatal(err)
	}
	if m.Measured != 1 || m.Nested != 1 || m.Sum.CPUs != 2 || m.Sum.Workloads != 3 || m.Sum.CPU.Workloads != 0.5 ||
		len(m.Nodes) != 2 || m.Nodes[0].Nested || !m.Nodes[1].Nested {
		t.Errorf("%+v", m)
	}
}
