package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/ingest"
	"mete.dev/mete/internal/promtext"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/store/ledger"
)

// metrics is how the server is doing, in Prometheus's text format. Nodes are
// those that who asks may see.
func (s *Server) metrics(ctx context.Context, scope query.Scope) (string, error) {
	kept, err := s.Ledger.Stats(ctx)
	if err != nil {
		return "", err
	}
	nodes, err := s.Ledger.Nodes(ctx, scope)
	if err != nil {
		return "", err
	}
	states := map[string]int64{}
	for i := range nodes {
		states[nodes[i].State]++
	}
	return metricsText(s.Ingest.Stats(), kept, states, time.Now()), nil
}

// metricsText writes what there is to say at a time; nodes is how many there are
// in each state.
func metricsText(in ingest.Stats, kept ledger.Stats, nodes map[string]int64, now time.Time) string {
	var t promtext.Text
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
	t.Gauges("mete_server_nodes", "Nodes that are enrolled, by state.",
		by("state", "live", nodes["live"]), by("state", "behind", nodes["behind"]), by("state", "silent", nodes["silent"]),
		by("state", "revoked", nodes["revoked"]))
	t.Counter("mete_server_ledger_revision_total", "Transactions that wrote to the ledger, since it was made.", float64(kept.Rev))
	lag := func(name, help string, mark time.Time) {
		if !mark.IsZero() {
			t.Gauge(name, help, now.Sub(mark).Seconds())
		}
	}
	lag("mete_server_ledger_hour_lag_seconds", "Age of the last minute that is folded into hours.", kept.Hours)
	lag("mete_server_ledger_day_lag_seconds", "Age of the last hour that is folded into days.", kept.Days)
	t.Gauge("mete_server_ledger_minute_rows", "Rows of minutes that are kept and folded.", float64(kept.Rows))
	t.Gauge("mete_server_ledger_day_rows", "Those of them that are of the latest day.", float64(kept.LatestRows))
	t.Gauge("mete_server_ledger_bytes", "Bytes of the database.", float64(kept.Bytes))
	t.Counter("mete_server_ledger_fold_seconds_total", "Time for which folding held the writer.", kept.Folding.Seconds())
	t.Counter("mete_server_ledger_fold_slices_total", "Transactions that this was in.", float64(kept.Slices))
	return t.String()
}
