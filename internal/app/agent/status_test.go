package agent

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/ship"
	"mete.dev/mete/internal/spool"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The metrics are compared whole: names are an interface.
func TestMetrics(t *testing.T) {
	got := metrics(agent.Status{
		Windows: 12345678, Rows: 1 << 40, Jobs: 3, Failing: "no space", Violations: 1, Missed: 2,
		Ship:  ship.Status{State: ship.Connected, Since: time.Unix(1, 0), Batches: 4, Bytes: 5_000_000_000, Retries: 6},
		Spool: spool.Stats{Bytes: 7 << 20, Windows: 8, Dropped: 9, Corrupt: 10, Refused: 11},
	})
	const golden = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
