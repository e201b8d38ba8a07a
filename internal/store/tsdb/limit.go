package tsdb

import (
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A seriesQuota limits how many workloads and names of a node start series per hour of the
// server's clock. Ended series stay in memory for some hours, so a node with few workloads
// whose names change with each window would fill it.
type seriesQuota struct {
	limit   int
	started int
	since   time.Time
}

// allow counts a new series and reports whether it is within the quota.
func (q *seriesQuota) allow(now time.Time) bool {
	if now.Sub(q.since) >= time.Hour {
		q.since, q.started = now, 0
	}
	if q.started >= q.limit {
		return false
	}
	q.started++
	return true
}

// hasRoom reports whether a new workload may have series of its own. Workloads that ended
// less than an hour ago count; the residual rows always have series.
func (n *node) hasRoom(short workload.ShortID) bool {
	return len(n.workloads) < n.quota.limit || slices.Contains(n.residuals[:], short)
}

// exceedsLimit reports whether an unknown workload is above the limit. Room that becomes free
// during a batch does not count, because fetchNames did not look up the name.
func (n *node) exceedsLimit(short workload.ShortID) bool {
	return !n.hasRoom(short) || n.full && !slices.Contains(n.residuals[:], short)
}

// startsSeries reports whether a workload without series gets them with a row. If the node
// exceeded the limit, the row must have totals, because the shared series shows the use
// before.
func (n *node) startsSeries(r *usage.Row) bool {
	if slices.Contains(n.residuals[:], r.ShortID) {
		return true
	}
	return (r.Has != 0 || !n.overLimit.Load()) && n.quota.allow(time.Now())
}

// countOverLimit counts rows of workloads above the limit, and logs the first ones of a node.
func (a *appendTx) countOverLimit(rows int) {
	if rows == 0 {
		return
	}
	a.stats.overLimit.Add(int64(rows))
	if a.node.overLimit.Swap(true) {
		return
	}
	a.log.Warn("a node exceeds the limit of workloads with series of their own: the metrics show the others together, the ledger has each",
		"node", a.node.id, "name", a.node.name, "limit", a.node.quota.limit, "workload", a.node.shortLived.id,
		"hint", "find the program that starts these workloads; revoke the node if it invents them")
}
