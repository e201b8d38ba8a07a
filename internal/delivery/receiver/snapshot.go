package receiver

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
)

// A NodeSnapshot is a node as it was in its latest window. Nobody changes it.
type NodeSnapshot struct {
	Node     string
	From, To time.Time
	CPUs     int
	Total    usage.Usage // of the machine: see batch.Window
	Parts    metric.Parts
	Rows     []SnapshotRow
}

// A SnapshotRow is what one workload used in it. A workload that used nothing has none,
// nor has one that is not among the busiest of a node that has very many.
type SnapshotRow struct {
	Workload batch.ShortID
	Usage    usage.Usage
}

// newSnapshot is a window as it is shown, with at most so many rows. Of more, those stay
// that used most of the processors.
func newSnapshot(node string, w *batch.Window, by time.Duration, most int) NodeSnapshot {
	p := NodeSnapshot{Node: node, From: timeline.Start(w, by), To: timeline.End(w, by), CPUs: w.CPUs, Total: w.Total, Parts: metric.PartsOf(node, w)}
	var rows []*batch.Row
	for i := range w.Rows {
		if w.Rows[i].Usage.Present != 0 {
			rows = append(rows, &w.Rows[i])
		}
	}
	if len(rows) > most {
		slices.SortStableFunc(rows, func(a, b *batch.Row) int { return cmp.Compare(b.Usage.Amount[usage.CPU], a.Usage.Amount[usage.CPU]) })
		rows = rows[:most]
	}
	p.Rows = make([]SnapshotRow, len(rows))
	for i, r := range rows {
		p.Rows[i] = SnapshotRow{r.Workload, r.Usage}
	}
	return p
}

// snapshotShare is the part of the rows of all nodes that one may have: one over it.
const snapshotShare = 8

// snapshotStore holds the latest window of each node.
type snapshotStore struct {
	nodes map[string]NodeSnapshot
	rows  int
}

// put replaces a node's latest window where p is later. Where more than limit rows
// would be held, the nodes go that ended before stale, which nobody is shown, and then
// the rows of those that have the most: one that has many takes the room of none that
// has few.
func (l *snapshotStore) put(p NodeSnapshot, limit int, stale time.Time) {
	old := l.nodes[p.Node]
	if !p.To.After(old.To) {
		return
	}
	l.nodes[p.Node] = p
	l.rows += len(p.Rows) - len(old.Rows)
	for l.rows > limit {
		var first NodeSnapshot
		for _, q := range l.nodes {
			if len(q.Rows) > 0 && (first.Node == "" || q.evictsBefore(&first, stale)) {
				first = q
			}
		}
		l.rows -= len(first.Rows)
		if first.To.Before(stale) {
			delete(l.nodes, first.Node)
			continue
		}
		first.Rows = nil
		l.nodes[first.Node] = first
	}
}

// evictsBefore says whether p goes before q where room is needed. Of nodes that have as many
// rows, the one goes that was heard of longest ago.
func (p *NodeSnapshot) evictsBefore(q *NodeSnapshot, stale time.Time) bool {
	if old := p.To.Before(stale); old != q.To.Before(stale) {
		return old
	}
	return cmp.Or(cmp.Compare(len(q.Rows), len(p.Rows)), p.To.Compare(q.To)) < 0
}

// Snapshots returns the latest window of each node that was booked since the server
// started, by node, without those that are stale.
func (rc *Receiver) Snapshots() []NodeSnapshot {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	all := make([]NodeSnapshot, 0, len(rc.snapshots.nodes))
	for _, p := range rc.snapshots.nodes {
		if now.Sub(p.To) <= rc.cfg.SnapshotTTL {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b NodeSnapshot) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Snapshot returns the latest window of one node; false where none was booked since
// the server started that is not stale.
func (rc *Receiver) Snapshot(node string) (NodeSnapshot, bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	p, ok := rc.snapshots.nodes[node]
	return p, ok && time.Since(p.To) <= rc.cfg.SnapshotTTL
}

// Anomalies are what was wrong with the windows of a node that were booked since the
// server started.
type Anomalies struct {
	Violations int64 // books that did not add up
	Missed     int64 // births and deaths that were not seen
}

// A SpoolUsage is how full an agent's spool was when it sent last.
type SpoolUsage struct {
	Bytes, Limit int64 // Limit is 0 where the agent said nothing
}

// NodeStatus returns the anomalies of a node, and how full its spool is.
func (rc *Receiver) NodeStatus(id string) (Anomalies, SpoolUsage) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	o, ok := rc.nodes[id]
	if !ok {
		return Anomalies{}, SpoolUsage{}
	}
	return o.anomalies, o.spool
}

// Stats counts what came since the server started.
type Stats struct {
	Accepted, Duplicates, OutOfOrder, Conflicts, Clones int64 // offers, by verdict
	Invalid, Denied, Unavailable                        int64 // offers that ended in an error of this kind, or of none
	Losses                                              int64 // words that batches are gone
	RateLimited                                         int64 // requests over a node's rate
	Rows, Bytes                                         int64 // of windows, and as they were sent: of what was taken
	// Violations counts windows' sums of parts that were not their whole, as their
	// senders said or as was found here: of what was taken.
	Violations    int64
	MetricsFailed int64 // batches that the metrics did not take
	Commits       int64
	CommitTime    time.Duration // spent in commits
	Queue         int64         // rows that wait now
	Nodes         int           // heard of
}

// Stats returns the counts as they are now.
func (rc *Receiver) Stats() Stats {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s := rc.stats
	s.Queue, s.Nodes = rc.light.rows.Load()+rc.heavy.rows.Load(), len(rc.nodes)
	return s
}

// record adds the outcome of an offer.
func (s *Stats) record(r batch.Reply, err error) {
	switch {
	case errors.Is(err, fault.ErrInvalid):
		s.Invalid++
	case errors.Is(err, fault.ErrDenied):
		s.Denied++
	case err != nil:
		s.Unavailable++
	case r.Verdict == batch.Accepted:
		s.Accepted++
	case r.Verdict == batch.Duplicate:
		s.Duplicates++
	case r.Verdict == batch.OutOfOrder:
		s.OutOfOrder++
	case r.Verdict == batch.Conflict:
		s.Conflicts++
	case r.Verdict == batch.Clone:
		s.Clones++
	}
}
