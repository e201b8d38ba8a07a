package tsdb

import (
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A seriesQuota is how many names of a node begin to have series in an hour of the server's
// clock. What ended stays in memory for some hours: who gives each window other names
// would fill it, few as there are at a time.
type seriesQuota struct {
	limit   int
	started int
	since   time.Time
}

// allow says whether one more may.
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

// hasRoom says whether one more workload may have series of its own. Those that ended less
// than an hour ago count as well. The residuals have them always.
func (n *node) hasRoom(short workload.ShortID) bool {
	return len(n.workloads) < n.quota.limit || slices.Contains(n.residuals[:], short)
}

// exceedsLimit says whether a workload that is not known is one too many. Room that becomes
// free while windows are appended is not for it: its name was not asked for.
func (n *node) exceedsLimit(short workload.ShortID) bool {
	return !n.hasRoom(short) || n.full && !slices.Contains(n.residuals[:], short)
}

// startsSeries says whether a workload that had no series until now has them from a row on.
// Over the limit that is one with totals: what it used before is shown with the others'.
func (n *node) startsSeries(r *usage.Row) bool {
	if slices.Contains(n.residuals[:], r.ShortID) {
		return true
	}
	return (r.Has != 0 || !n.overLimit.Load()) && n.quota.allow(time.Now())
}

// countOverLimit counts rows of a window that are of one workload too many, and says so once.
func (a *appendTx) countOverLimit(rows int) {
	if rows == 0 {
		return
	}
	a.stats.overLimit.Add(int64(rows))
	if a.node.overLimit.Swap(true) {
		return
	}
	a.log.Warn("a node has more workloads than may have series of their own: the metrics show the others together, and the ledger has each",
		"node", a.node.id, "name", a.node.name, "limit", a.node.quota.limit, "workload", a.node.shortLived.id,
		"hint", "find out what starts so many on it; revoke the node where it makes them up")
}
