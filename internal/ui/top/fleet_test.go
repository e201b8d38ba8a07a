package top_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/ui/top"
)

// TestFleetGolden compares the text and the JSON of a fleet with golden files, byte by byte.
func TestFleetGolden(t *testing.T) {
	body, err := os.ReadFile("testdata/rates.json")
	if err != nil {
		t.Fatal(err)
	}
	var rates v1.List[live.NodeRates]
	if err := json.Unmarshal(body, &rates); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 5, 0, time.UTC)
	fleet := top.Fleet{Server: "https://mete.example", At: at, Rates: rates.Items}
	for i, state := range []string{"live", "behind", "live", "live", "live", "silent"} {
		id := "01J0000000000000000000000" + string(rune('0'+i))
		fleet.Nodes = append(fleet.Nodes, v1.NodeOf(&query.Node{ID: id, Name: "box-" + id[25:], Cluster: []string{"lab", "east"}[i%2], State: state, Through: at.Add(-time.Minute)}))
	}
	fleet.Nodes[4].Nested = &v1.Nesting{Host: fleet.Nodes[0].ID, HostName: "box-0", Workload: "w"}
	var got strings.Builder
	for _, fleet.Only = range []string{"", "box-4"} {
		m, err := fleet.Machine()
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range []top.Options{{}, {Flat: true, Sort: top.ByDisk}, {Flat: true, Sort: top.ByNetwork, Sums: true}, {Sums: true, Sort: top.ByPressure, Percent: true, ASCII: true}} {
			got.WriteString(top.Text(m, 0, o) + "\n")
			if i > 1 {
				continue
			}
			arranged, err := json.Marshal(top.Arrange(m, o).Shown(m))
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(strings.ReplaceAll(string(arranged), `{"id"`, "\n{\"id\"") + "\n\n")
		}
		for i := 0; i < len(m.Rows); i += 5 {
			for _, l := range top.Details(m, &m.Rows[i], nil, 100, top.Options{}) {
				got.WriteString(l.String() + "\n")
			}
		}
	}
	golden(t, "fleet-rates.txt", got.String())
}

// The JSON of a machine, which pages read, is to the byte what it always was.
func TestMachineGolden(t *testing.T) {
	got, err := json.Marshal(toptest.Machine(3))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "machine.json", strings.ReplaceAll(string(got), `{"id"`, "\n{\"id\"")+"\n")
}
