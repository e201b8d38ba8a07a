package server_test

import (
	"maps"
	"testing"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/enroll"
)

// Two machines with one host name in a cluster have series of their own, also those of the state of
// measuring.
func TestNodesOfOneName(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	ids := []*enroll.Identity{b.enroll(t, registry.Agent, "m1"), b.enroll(t, registry.Agent, "m2")}
	for i, id := range ids {
		sent, clock := aBatchOf(t, id.Node(), byte(i+1), "web")
		if _, err := offer(t, id, b, sent, clock); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.PutState(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := ids[1].Node()
	second = "alpha~" + second[len(second)-6:]
	lab := b.viewer(t, "lab")
	// The queries look back, so that the verdict does not depend on how long the test takes.
	for _, query := range []string{"last_over_time(mete_node_cpus[1h])", `last_over_time(mete_node_cpu_cores{part="workloads"}[1h]) * 10`, "count by (node) (last_over_time(mete_node_gap_seconds_total[1h]))",
		`count by (node) (last_over_time(mete_workload_info{name="web"}[1h]))`} {
		if got, want := b.values(t, lab, query), map[string]float64{"alpha": 1, second: 1}; !maps.Equal(got, want) {
			t.Errorf("%s is %v, want %v", query, got, want)
		}
	}
}
