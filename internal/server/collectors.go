package server

import (
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/identity/slurm"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/prom/alert"
	"mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
)

// registerCollectors registers the collectors that need no query of the ledger.
func (s *Server) registerCollectors() {
	s.registry = newRegistry(
		collectReceiver(s.Receiver.Stats), collectTSDB(s.Metrics.Stats), collectAlerts(s.alerts.Counts, s.alerts.Firing),
		collectCertificates(s.Authority.OwnExpiry), collectDirectives(s.directives.stats), collectRemoteWriter(s.remote.Status), collectRemoteWrite(s.remoteWrite.Counts), collectQueries(s.prom.Counts),
	)
	if s.Pods != nil {
		s.registry.MustRegister(collectPods(s.Pods.Stats))
	}
	if s.Slurm != nil {
		s.registry.MustRegister(collectSlurm(s.Slurm.Stats))
	}
}

// truth is the value of a gauge that is 1 or 0.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func collectPods(stats func() kube.Stats) collector {
	return func(m *metrics) {
		s := stats()
		m.gauge("mete_server_kube_lease_held", "1 if this server names the pods of the watched Kubernetes cluster, 0 if another one with its ledger does.", truth(s.Holds))
		m.gauge("mete_server_kube_synced", "1 if all pods of the watched Kubernetes cluster were read since the server started.", truth(s.Synced))
		m.gauge("mete_server_kube_pods", "Pods that the watched Kubernetes cluster has.", float64(s.Pods))
		m.gauge("mete_server_kube_volumes", "Persistent volumes that the watched Kubernetes cluster has; 0 if the server may not list them.", float64(s.Volumes))
		m.counter("mete_server_kube_lists_total", "Times that all pods of the watched Kubernetes cluster were read: at the start, and whenever the API server no longer had the changes since.", float64(s.Lists))
		m.counter("mete_server_kube_pods_booked_total", "Pods that were written to the ledger because they were new or had changed.", float64(s.Booked))
		m.counter("mete_server_kube_booking_errors_total", "Failed attempts to write pods to the ledger; they are written later.", float64(s.Failures))
		m.counter("mete_server_kube_api_errors_total", "Errors of the API server of the watched Kubernetes cluster.", float64(s.Errors))
	}
}

func collectDirectives(stats func() directiveStats) collector {
	return func(m *metrics) {
		s := stats()
		m.gauge("mete_server_directives_waiting", "Requests of agents that wait for a change of their directives.", float64(s.Waiting))
		m.counter("mete_server_directives_requests_total", "Requests of agents for the list of their directives.", float64(s.Answers))
		m.counter("mete_server_directives_bytes_total", "Bytes of the contents of directives that agents fetched, as they were sent.", float64(s.Bytes))
		for _, name := range sectionNames {
			m.gauge("mete_server_directives_rejected_nodes", "Nodes that do not follow a section of their directives, by section.", float64(s.Rejected[name]), "section", name)
		}
	}
}

func collectSlurm(stats func() slurm.Stats) collector {
	return func(m *metrics) {
		s := stats()
		m.gauge("mete_server_slurm_up", "1 if Slurm's controller answered the latest question, otherwise 0.", truth(s.Up))
		m.gauge("mete_server_slurm_jobs", "Jobs that Slurm's controller has and that have started.", float64(s.Jobs))
		m.counter("mete_server_slurm_jobs_booked_total", "Jobs of Slurm that were written to the ledger because they were new or had changed.", float64(s.Booked))
		m.counter("mete_server_slurm_numbers_reused_total", "Jobs of Slurm whose number an earlier job had too.", float64(s.Reused))
		m.counter("mete_server_slurm_booking_errors_total", "Failed attempts to write jobs of Slurm to the ledger; they are written later.", float64(s.Failures))
		m.counter("mete_server_slurm_errors_total", "Errors of Slurm's commands.", float64(s.Errors))
	}
}

func collectReceiver(stats func() receiver.Stats) collector {
	return func(m *metrics) {
		in := stats()
		batches := func(verdict string, n int64) {
			m.counter("mete_server_batches_total", "Batches that agents offered, by the server's verdict.", float64(n), "verdict", verdict)
		}
		batches("taken", in.Accepted)
		batches("known", in.Duplicates)
		batches("behind", in.OutOfOrder)
		batches("conflict", in.Conflicts)
		batches("clone", in.Clones)
		refused := func(reason string, n int64) {
			m.counter("mete_server_refused_total", "Batches and requests of agents that the server refused, by reason.", float64(n), "reason", reason)
		}
		refused("invalid", in.Invalid)
		refused("denied", in.Denied)
		refused("unavailable", in.Unavailable)
		refused("limited", in.RateLimited)
		m.counter("mete_server_lost_total", "Batches reported lost by agents.", float64(in.Losses))
		m.counter("mete_server_rows_total", "Rows of windows in accepted batches.", float64(in.Rows))
		m.counter("mete_server_bytes_total", "Bytes of accepted batches.", float64(in.Bytes))
		m.counter(metric.Violations, "Sums of parts in accepted windows that differ from their whole, as the agent reported or the server found: always a defect.", float64(in.Violations))
		m.counter("mete_server_commits_total", "Transactions that booked batches.", float64(in.Commits))
		m.counter("mete_server_commit_seconds_total", "Time spent in transactions that booked batches, including the wait for the writer.", in.CommitTime.Seconds())
		m.gauge("mete_server_queue_rows", "Rows that wait to be booked.", float64(in.Queue))
		m.counter("mete_server_metrics_missed_total", "Batches whose samples could not be added to the time series database.", float64(in.MetricsFailed))
	}
}

// collectNodes counts nodes by state.
func collectNodes(nodes []query.Node) collector {
	n := map[string]int64{}
	for i := range nodes {
		n[nodes[i].State]++
	}
	return func(m *metrics) {
		for _, state := range []string{"live", "behind", "silent", "revoked"} {
			m.gauge("mete_server_nodes", "Enrolled nodes, by state.", float64(n[state]), "state", state)
		}
	}
}

func collectLedger(stats ledger.Stats, now time.Time) collector {
	return func(m *metrics) {
		m.counter("mete_server_ledger_revision_total", "Transactions that wrote to the ledger since it was created.", float64(stats.Rev))
		lag := func(name, help string, mark time.Time) {
			if !mark.IsZero() {
				m.gauge(name, help, now.Sub(mark).Seconds())
			}
		}
		lag("mete_server_ledger_hour_lag_seconds", "Age of the last minute that is folded into hours.", stats.Hours)
		lag("mete_server_ledger_day_lag_seconds", "Age of the last hour that is folded into days.", stats.Days)
		m.gauge("mete_server_ledger_minute_rows", "Rows of minutes that the ledger keeps and has folded.", float64(stats.Rows))
		m.gauge("mete_server_ledger_day_rows", "Rows of minutes of the latest day that the ledger keeps and has folded.", float64(stats.LatestRows))
		m.gauge("mete_server_ledger_bytes", "Size of the database.", float64(stats.Bytes))
		m.counter("mete_server_ledger_fold_seconds_total", "Time for which folding held the writer.", stats.Folding.Seconds())
		m.counter("mete_server_ledger_fold_slices_total", "Transactions of folding.", float64(stats.Slices))
	}
}

func collectTSDB(stats func() tsdb.Stats) collector {
	return func(m *metrics) {
		st := stats()
		m.counter("mete_server_metrics_samples_total", "Samples that the time series database accepted.", float64(st.Samples))
		m.counter("mete_server_metrics_refused_total", "Samples that the time series database refused, because they are too old or differ from those that it has.", float64(st.Refused))
		m.counter("mete_server_metrics_filled_total", "Samples that the time series database had lost and that were restored from the ledger.", float64(st.Backfilled))
		m.gauge("mete_server_metrics_behind_nodes", "Nodes whose samples in the time series database are incomplete.", float64(st.IncompleteNodes))
		m.counter("mete_server_metrics_crowded_rows_total", "Rows of workloads without series of their own, because their node has too many: they are added to the series of short-lived workloads.", float64(st.OverLimit))
		m.gauge("mete_server_metrics_series", "Series in memory.", float64(st.Series))
	}
}

func collectAlerts(counts func() alert.Counts, firing func() int64) collector {
	return func(m *metrics) {
		m.gauge("mete_server_alerts_firing", "Alerts that fire, the heartbeat among them.", float64(firing()))
		sent := counts()
		requests := func(to, result string, n int64) {
			m.counter("mete_server_alert_requests_total", "Requests with alerts, by kind of receiver and by whether it accepted them.", float64(n), "receiver", to, "result", result)
		}
		requests("alertmanager", "taken", sent.Sent)
		requests("alertmanager", "failed", sent.Failed)
		requests("webhook", "taken", sent.WebhookSent)
		requests("webhook", "failed", sent.WebhookFailed)
		m.counter("mete_server_alerts_dropped_total", "Alerts that were not sent to the webhook, because there were too many.", float64(sent.WebhookDropped))
	}
}

func collectCertificates(expiry func() (server, authority time.Time)) collector {
	return func(m *metrics) {
		server, authority := expiry()
		const help = "When the certificates of the server and of its authority expire, in seconds since 1970."
		m.gauge(metric.ServerExpiry, help, float64(server.Unix()), metric.Certificate, metric.ServerCertificate)
		m.gauge(metric.ServerExpiry, help, float64(authority.Unix()), metric.Certificate, metric.AuthorityCertificate)
	}
}

// collectRemoteWrite is about the samples that this server receives by remote write.
func collectRemoteWrite(counts func() remotewrite.Counts) collector {
	return func(m *metrics) {
		const name, help = "mete_server_written_samples_total", "Samples received by remote write, by result."
		written := counts()
		m.counter(name, help, float64(written.Accepted), "result", "taken")
		m.counter(name, help, float64(written.Refused), "result", "refused")
	}
}

// collectRemoteWriter is about the samples that this server sends by remote write.
func collectRemoteWriter(status func() []remotewrite.Status) collector {
	return func(m *metrics) {
		for _, to := range status() {
			counter := func(name, help string, n float64) { m.counter(name, help, n, "receiver", to.Name) }
			counter("mete_server_remote_samples_total", "Samples that were sent to each receiver of remote write.", float64(to.Sent))
			counter("mete_server_remote_failed_total", "Samples that the receiver refused permanently.", float64(to.Failed))
			counter("mete_server_remote_retried_total", "Samples that were sent again, because the receiver could not be reached or requested it.", float64(to.Retried))
			counter("mete_server_remote_dropped_total", "Samples that were not sent, because their series is unknown.", float64(to.Dropped))
			counter("mete_server_remote_bytes_total", "Bytes of requests to the receiver, compressed.", float64(to.Bytes))
			m.gauge("mete_server_remote_pending", "Samples that wait to be sent to the receiver.", float64(to.Pending), "receiver", to.Name)
			m.gauge("mete_server_remote_behind_seconds", "Delay of the latest sample that the receiver accepted behind the latest sample of this server.", to.Behind.Seconds(), "receiver", to.Name)
		}
	}
}

func collectQueries(counts func() api.Counts) collector {
	return func(m *metrics) {
		n := counts()
		queries := func(result string, n int64) {
			m.counter("mete_server_queries_total", "PromQL queries and queries of series and labels, by result.", float64(n), "result", result)
		}
		queries("answered", n.Answered)
		queries("invalid", n.Invalid)
		queries("refused", n.Refused)
		queries("late", n.TimedOut)
		m.counter("mete_server_queries_large_total", "Large queries.", float64(n.Large))
		m.counter("mete_server_query_seconds_total", "Time that all queries took together.", n.Took.Seconds())
		m.counter("mete_server_query_wait_seconds_total", "Time that all queries waited in the queue together.", n.Waited.Seconds())
		m.gauge("mete_server_queries_waiting", "Queries that wait in the queue.", float64(n.Waiting))
	}
}
