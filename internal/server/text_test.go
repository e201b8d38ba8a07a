package server

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/ingest"
	"mete.dev/mete/internal/store/ledger"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The metrics are compared whole: names are an interface, and docs/metrics.md is
// made from the golden file.
func TestMetricsText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	got := metricsText(
		ingest.Stats{Taken: 1, Known: 2, Behind: 3, Conflicts: 4, Clones: 5, Invalid: 6, Denied: 7, Unavailable: 8, Limited: 9, Lost: 10, Rows: 11, Bytes: 12, Commits: 13,
			Committing: 14 * time.Second, Queue: 15},
		ledger.Stats{Rev: 16, Hours: now.Add(-time.Hour), Days: now.Add(-24 * time.Hour), Rows: 17, LatestRows: 18, Bytes: 19, Folding: 20 * time.Second, Slices: 21},
		map[string]int64{"live": 22, "behind": 23, "silent": 24, "revoked": 25}, now)
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
