package tsdb

import (
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
)

// A quota is how many names of a node begin to have series in an hour of the server's
// clock. What ended stays in memory for some hours: who gives each window other names
// would fill it, few as there are at a time.
type quota struct {
	most  int
	begun int
	since time.Time
}

// take says whether one more may.
func (q *quota) take(now time.Time) bool {
	if now.Sub(q.since) >= time.Hour {
		q.since, q.begun = now, 0
	}
	if q.begun >= q.most {
		return false
	}
	q.begun++
	return true
}

// room says whether one more workload may have series of its own. Those that ended less
// than an hour ago count as well. The residuals have them always.
func (n *node) room(short batch.Short) bool {
	return len(n.workloads) < n.quota.most || slices.Contains(n.residuals[:], short)
}

// turns says whether a workload that is not known is one too many. Room that becomes
// free while windows are appended is not for it: its name was not asked for.
func (n *node) turns(short batch.Short) bool {
	return !n.room(short) || n.full && !slices.Contains(n.residuals[:], short)
}

// begins says whether a workload that had no series until now has them from a row on.
// In a crowd that is one with totals: what it used before is shown with the others'.
func (n *node) begins(r *batch.Row) bool {
	if slices.Contains(n.residuals[:], r.Workload) {
		return true
	}
	return (r.Has != 0 || !n.crowded.Load()) && n.quota.take(time.Now())
}

// crowd counts rows of a window that are of one workload too many, and says so once.
func (a *appending) crowd(rows int) {
	if rows == 0 {
		return
	}
	a.stats.crowded.Add(int64(rows))
	if a.node.crowded.Swap(true) {
		return
	}
	a.log.Warn("a node has more workloads than may have series of their own: the metrics show the others together, and the ledger has each",
		"node", a.node.id, "name", a.node.name, "limit", a.node.quota.most, "workload", a.node.brief.id,
		"hint", "find out what starts so many on it; revoke the node where it makes them up")
}
