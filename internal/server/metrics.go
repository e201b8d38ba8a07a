package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/promtext"
	"mete.dev/mete/internal/query"
)

// metrics is how the server is doing, in Prometheus's text format. Nodes are
// those that who asks may see.
func (s *Server) metrics(ctx context.Context, scope query.Scope) (string, error) {
	ledger, err := s.Ledger.Stats(ctx)
	if err != nil {
		return "", err
	}
	nodes, err := s.Ledger.Nodes(ctx, scope)
	if err != nil {
		return "", err
	}
	var t promtext.Text
	in := s.Ingest.Stats()
	by := func(label, value string, n int64) promtext.Sample {
		return promtext.Sample{Labels: []string{label, value}, Value: float64(n)}
	}
	t.Counters("mete_server_batches_total", "Batches that were offered and judged, by verdict.",
		by("verdict", "taken", in.Taken), by("verdict", "known", in.Known), by("verdict", "behind", in.Behind),
		by("verdict", "conflict", in.Conflicts), by("verdict", "clone", in.Clones))
	t.Counters("mete_server_refused_total", "Batches and requests that were refused, by reason.",
		by("reason", "invalid", in.Invalid), by("reason", "denied", in.Denied), by("reason", "unavailable", in.Unavailable), by("reason", "limited", in.Limited))
	t.Counter("mete_server_lost_total", "Words of agents that batches are gone.", float64(in.Lost))
	t.Counter("mete_server_rows_total", "Rows of windows that were taken.", float64(in.Rows))
	t.Counter("mete_server_bytes_total", "Bytes of the batches that were taken.", float64(in.Bytes))
	t.Counter("mete_server_commits_total", "Transactions that booked batches.", float64(in.Commits))
	t.Counter("mete_server_commit_seconds_total", "Time spent in those transactions, waiting for the writer included.", in.Committing.Seconds())
	t.Gauge("mete_server_queue_rows", "Rows that wait to be booked.", float64(in.Queue))
	states := map[string]int64{}
	for i := range nodes {
		states[nodes[i].State]++
	}
	t.Gauges("mete_server_nodes", "Nodes that are enrolled, by state.",
		by("state", "live", states["live"]), by("state", "behind", states["behind"]), by("state", "silent", states["silent"]))
	t.Counter("mete_server_ledger_revision_total", "Transactions that wrote to the ledger, since it was made.", float64(ledger.Rev))
	now := time.Now()
	lag := func(name, help string, mark time.Time) {
		if !mark.IsZero() {
			t.Gauge(name, help, now.Sub(mark).Seconds())
		}
	}
	lag("mete_server_ledger_hour_lag_seconds", "Age of the last minute that is folded into hours.", ledger.Hours)
	lag("mete_server_ledger_day_lag_seconds", "Age of the last hour that is folded into days.", ledger.Days)
	t.Gauge("mete_server_ledger_minute_rows", "Rows of minutes that are kept and folded.", float64(ledger.Rows))
	t.Gauge("mete_server_ledger_day_rows", "Those of them that are of the latest day.", float64(ledger.LatestRows))
	t.Gauge("mete_server_ledger_bytes", "Bytes of the database.", float64(ledger.Bytes))
	t.Counter("mete_server_ledger_fold_seconds_total", "Time for which folding held the writer.", ledger.Folding.Seconds())
	t.Counter("mete_server_ledger_fold_slices_total", "Transactions that this was in.", float64(ledger.Slices))
	return t.String(), nil
}
