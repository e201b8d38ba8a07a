package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/prom/alert"
	"mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
)

// serverMetrics is how the server is doing, in Prometheus's text format. Who does not see
// all is told of the nodes alone that he sees: the rest counts what others send and
// ask, too.
func (s *Server) serverMetrics(ctx context.Context, scope query.Scope) (string, error) {
	nodes, err := s.Ledger.Nodes(ctx, scope)
	if err != nil {
		return "", err
	}
	meters, err := s.meterMetrics(ctx, scope, nodes)
	if err != nil {
		return "", err
	}
	if !scope.All {
		t := &exposition.Text{}
		nodesText(t, countStates(nodes))
		return t.String() + meters, nil
	}
	kept, err := s.Ledger.Stats(ctx)
	if err != nil {
		return "", err
	}
	return s.metricsText(kept, nodes, time.Now()).String() + meters, nil
}

func (s *Server) metricsText(kept ledger.Stats, nodes []query.Node, now time.Time) *exposition.Text {
	var own certificateEnds
	own.server, own.authority = s.Authority.OwnExpiry()
	return metricsText(s.Ingest.Stats(), kept, s.Metrics.Stats(), s.alerts.Counts(), s.alerts.Firing(), own, s.remote.Status(), s.remoteWrite.Counts(), s.prom.Counts(), countStates(nodes), now)
}

// countStates counts nodes by their states.
func countStates(nodes []query.Node) map[string]int64 {
	n := map[string]int64{}
	for i := range nodes {
		n[nodes[i].State]++
	}
	return n
}

// certificateEnds is when certificates end.
type certificateEnds struct{ server, authority time.Time }

// metricsText is what there is to say at a time; nodes is how many there are in each
// state.
func metricsText(in receiver.Stats, kept ledger.Stats, shown tsdb.Stats, told alert.Counts, firing int64, own certificateEnds, to []remotewrite.Status, written remotewrite.Counts, asked api.Counts, nodes map[string]int64, now time.Time) *exposition.Text {
	t := &exposition.Text{}
	by := func(label, value string, n int64) exposition.Sample {
		return exposition.Sample{Labels: []string{label, value}, Value: float64(n)}
	}
	t.Counters("mete_server_batches_total", "Batches that were offered and judged, by verdict.",
		by("verdict", "taken", in.Accepted), by("verdict", "known", in.Duplicates), by("verdict", "behind", in.OutOfOrder),
		by("verdict", "conflict", in.Conflicts), by("verdict", "clone", in.Clones))
	t.Counters("mete_server_refused_total", "Batches and requests that were refused, by reason.",
		by("reason", "invalid", in.Invalid), by("reason", "denied", in.Denied), by("reason", "unavailable", in.Unavailable), by("reason", "limited", in.RateLimited))
	t.Counter("mete_server_lost_total", "Words of agents that batches are gone.", float64(in.Losses))
	t.Counter("mete_server_rows_total", "Rows of windows that were taken.", float64(in.Rows))
	t.Counter("mete_server_bytes_total", "Bytes of the batches that were taken.", float64(in.Bytes))
	t.Counter("mete_conservation_violations_total", "Sums of parts in those windows that were not their whole, as the agent said or the server found: always a defect.", float64(in.Violations))
	t.Counter("mete_server_commits_total", "Transactions that booked batches.", float64(in.Commits))
	t.Counter("mete_server_commit_seconds_total", "Time spent in those transactions, waiting for the writer included.", in.CommitTime.Seconds())
	t.Gauge("mete_server_queue_rows", "Rows that wait to be booked.", float64(in.Queue))
	nodesText(t, nodes)
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
	t.Counter("mete_server_metrics_samples_total", "Samples that the metrics took.", float64(shown.Samples))
	t.Counter("mete_server_metrics_refused_total", "Samples that they did not, as they are too old, or others are there.", float64(shown.Refused))
	t.Counter("mete_server_metrics_missed_total", "Batches that they took nothing of.", float64(in.MetricsFailed))
	t.Counter("mete_server_metrics_filled_total", "Samples that the metrics had lost, and were filled in from the ledger.", float64(shown.Backfilled))
	t.Gauge("mete_server_metrics_behind_nodes", "Nodes of which the metrics lack something that the ledger has.", float64(shown.IncompleteNodes))
	t.Counter("mete_server_metrics_crowded_rows_total", "Rows of workloads that have no series of their own, as their nodes have too many: they are in that of the brief ones.", float64(shown.OverLimit))
	t.Gauge("mete_server_metrics_series", "Series in memory.", float64(shown.Series))
	t.Gauge("mete_server_alerts_firing", "Alerts that fire.", float64(firing))
	t.Counters("mete_server_alert_requests_total", "Requests with alerts to receivers, by kind of receiver and by whether it took them.",
		exposition.Sample{Labels: []string{"receiver", "alertmanager", "result", "taken"}, Value: float64(told.Sent)},
		exposition.Sample{Labels: []string{"receiver", "alertmanager", "result", "failed"}, Value: float64(told.Failed)},
		exposition.Sample{Labels: []string{"receiver", "webhook", "result", "taken"}, Value: float64(told.WebhookSent)},
		exposition.Sample{Labels: []string{"receiver", "webhook", "result", "failed"}, Value: float64(told.WebhookFailed)})
	t.Counter("mete_server_alerts_dropped_total", "Alerts that the webhook is not told of, as there were too many.", float64(told.WebhookDropped))
	t.Gauges(metric.ServerExpiry, "When the server's own certificate ends, and that of its authority, in seconds since 1970.",
		by(metric.Certificate, metric.ServerCertificate, own.server.Unix()), by(metric.Certificate, metric.AuthorityCertificate, own.authority.Unix()))
	t.Counters("mete_server_written_samples_total", "Samples of others' series that were written by remote write, by what became of them.",
		by("result", "taken", written.Accepted), by("result", "refused", written.Refused))
	t.Counters("mete_server_queries_total", "PromQL queries, and questions for series and labels, by what became of them.",
		by("result", "answered", asked.Answered), by("result", "invalid", asked.Invalid), by("result", "refused", asked.Refused), by("result", "late", asked.TimedOut))
	t.Counter("mete_server_queries_large_total", "Those of them that were large.", float64(asked.Large))
	t.Counter("mete_server_query_seconds_total", "Time that they took, all together.", asked.Took.Seconds())
	t.Counter("mete_server_query_wait_seconds_total", "Time that they waited for their turns, all together.", asked.Waited.Seconds())
	t.Gauge("mete_server_queries_waiting", "Those that wait now.", float64(asked.Waiting))
	remoteText(t, to)
	return t
}

// nodesText is how many nodes are in each state.
func nodesText(t *exposition.Text, nodes map[string]int64) {
	var list []exposition.Sample
	for _, state := range []string{"live", "behind", "silent", "revoked"} {
		list = append(list, exposition.Sample{Labels: []string{"state", state}, Value: float64(nodes[state])})
	}
	t.Gauges("mete_server_nodes", "Nodes that are enrolled, by state.", list...)
}

// remoteText is how the receivers of samples are told; nothing where there are none.
func remoteText(t *exposition.Text, to []remotewrite.Status) {
	if len(to) == 0 {
		return
	}
	each := func(of func(*remotewrite.Status) float64) (list []exposition.Sample) {
		for i := range to {
			list = append(list, exposition.Sample{Labels: []string{"receiver", to[i].Name}, Value: of(&to[i])})
		}
		return list
	}
	t.Counters("mete_server_remote_samples_total", "Samples that were sent to each receiver of remote write.", each(func(s *remotewrite.Status) float64 { return float64(s.Sent) })...)
	t.Counters("mete_server_remote_failed_total", "Samples that it refused for good.", each(func(s *remotewrite.Status) float64 { return float64(s.Failed) })...)
	t.Counters("mete_server_remote_retried_total", "Samples that were sent again, as it could not be reached or asked for it.", each(func(s *remotewrite.Status) float64 { return float64(s.Retried) })...)
	t.Counters("mete_server_remote_dropped_total", "Samples that were not sent, as nobody knows their series any more.", each(func(s *remotewrite.Status) float64 { return float64(s.Dropped) })...)
	t.Counters("mete_server_remote_bytes_total", "Bytes of these requests, packed.", each(func(s *remotewrite.Status) float64 { return float64(s.Bytes) })...)
	t.Gauges("mete_server_remote_pending", "Samples that wait to be sent to it.", each(func(s *remotewrite.Status) float64 { return float64(s.Pending) })...)
	t.Gauges("mete_server_remote_behind_seconds", "By how much the latest sample that it took is older than the latest that there is.", each(func(s *remotewrite.Status) float64 { return s.Behind.Seconds() })...)
}
