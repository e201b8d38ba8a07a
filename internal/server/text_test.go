package server

import (
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/identity/slurm"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/prom/alert"
	"mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/server/meterreader"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The golden file pins names and help texts, and docs/metrics.md is generated from it.
func TestMetricsText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sum := unit.Sum{}.Add
	var nodes []query.Node
	for state, n := range map[string]int{"live": 22, "behind": 23, "silent": 24, "revoked": 25} {
		nodes = append(nodes, slices.Repeat([]query.Node{{State: state}}, n)...)
	}
	got, err := metricsText(newRegistry(
		collectReceiver(func() receiver.Stats {
			return receiver.Stats{Accepted: 1, Duplicates: 2, OutOfOrder: 3, Conflicts: 4, Clones: 5, Invalid: 6, Denied: 7, Unavailable: 8, RateLimited: 9, Losses: 10, Rows: 11, Bytes: 12, Violations: 36, Commits: 13,
				CommitTime: 14 * time.Second, Queue: 15, MetricsFailed: 29}
		}),
		collectLedger(ledger.Stats{Rev: 16, Hours: now.Add(-time.Hour), Days: now.Add(-24 * time.Hour), Rows: 17, LatestRows: 18, Bytes: 19, Folding: 20 * time.Second, Slices: 21}, now),
		collectNodes(nodes),
		collectTSDB(func() tsdb.Stats { return tsdb.Stats{Samples: 26, Refused: 27, Series: 28, OverLimit: 53} }),
		collectAlerts(func() alert.Counts {
			return alert.Counts{Sent: 30, Failed: 31, WebhookSent: 32, WebhookFailed: 33, WebhookDropped: 34}
		}, func() int64 { return 35 }),
		collectCertificates(func() (server, authority time.Time) { return now.Add(24 * time.Hour), now.Add(48 * time.Hour) }),
		collectRemoteWriter(func() []remotewrite.Status {
			return []remotewrite.Status{{Name: "mimir:9009", Sent: 36, Failed: 37, Retried: 38, Dropped: 39, Bytes: 40, Pending: 41, Behind: 42 * time.Second}}
		}),
		collectRemoteWrite(func() remotewrite.Counts { return remotewrite.Counts{Accepted: 43, Refused: 44} }),
		collectQueries(func() api.Counts {
			return api.Counts{Answered: 45, Invalid: 46, Refused: 47, TimedOut: 48, Large: 49, Waited: 50 * time.Second, Took: 51 * time.Second, Waiting: 52}
		}),
		collectPods(func() kube.Stats {
			return kube.Stats{Synced: true, Pods: 54, Volumes: 52, Lists: 53, Booked: 55, Failures: 56, Errors: 57}
		}),
		collectSlurm(func() slurm.Stats {
			return slurm.Stats{Up: true, Jobs: 58, Booked: 59, Reused: 60, Failures: 61, Errors: 62}
		}),
		collectMeters([]meterreader.State{{Name: "pdu", Samples: 26, Failures: 27, Minutes: 28, Gaps: 29, Last: now.Add(-30 * time.Second), Watts: 31}}, now),
		// Two clusters may have nodes of one name.
		collectMeterRatios([]ledger.MeterRatio{{Name: "web-1", Cluster: "lab", Meter: sum(200e6), Inside: sum(150e6), Measured: sum(100e6)}, {Name: "web-1", Cluster: "prod", Meter: sum(4), Inside: sum(1), Measured: sum(1)}}),
	))
	if err != nil {
		t.Fatal(err)
	}
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

// TestMetricsOfAnyName checks that label values from agents, which may be duplicates or
// invalid UTF-8, do not make gathering fail.
func TestMetricsOfAnyName(t *testing.T) {
	got, err := metricsText(newRegistry(func(m *metrics) {
		m.gauge("g", "a level", 1, "node", "a\xff\"")
		m.gauge("g", "a level", 2, "node", "b")
		m.gauge("g", "a level", 3, "node", "b")
	}))
	const want = "# HELP g a level\n# TYPE g gauge\ng{node=\"a\uFFFD\\\"\"} 1\ng{node=\"b\"} 2\n"
	if got != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
