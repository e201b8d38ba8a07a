package receiver

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A NodeSnapshot is the latest window of a node. It is read-only.
type NodeSnapshot struct {
	Node     string
	From, To time.Time
	live.Present
	Rows []SnapshotRow
}

// A SnapshotRow is the use of one workload in that window. A workload that used nothing has no
// row, nor has one that is not among the busiest of a node with very many workloads.
type SnapshotRow struct {
	Workload workload.ShortID
	Residual bool         // it is system or idle
	Amounts  live.Figures // of the window: see [live.FiguresOf]
}

// newSnapshot makes a snapshot of a window, its times moved by correction, with at most maxRows rows:
// those that used the most CPU time.
func newSnapshot(node string, w *usage.Window, correction time.Duration, maxRows int) NodeSnapshot {
	s := NodeSnapshot{Node: node, From: walltime.Start(w, correction), To: walltime.End(w, correction)}
	s.Present = live.PresentOf(metric.PartsOf(node, w), &w.Total, s.To.Sub(s.From))
	s.CPUs = w.CPUs
	var rows []*usage.Row
	for i := range w.Rows {
		switch r := &w.Rows[i]; {
		case r.Usage.Present == 0:
		case len(rows) > 0 && rows[len(rows)-1].ShortID == r.ShortID: // rows of one workload follow each other
			sum := *rows[len(rows)-1]
			sum.Usage.Add(&r.Usage)
			rows[len(rows)-1] = &sum
		default:
			rows = append(rows, r)
		}
	}
	system, _ := workload.ShortIDOf(workload.NewID(node, workload.System, ""))
	idle, _ := workload.ShortIDOf(workload.NewID(node, workload.Idle, ""))
	isResidual := func(r *usage.Row) bool { return r.ShortID == system || r.ShortID == idle }
	for _, r := range rows {
		if !isResidual(r) {
			s.Workloads++
		}
	}
	if len(rows) > maxRows {
		slices.SortStableFunc(rows, func(a, b *usage.Row) int { return cmp.Compare(b.Usage.Amount[usage.CPU], a.Usage.Amount[usage.CPU]) })
		rows = rows[:maxRows]
	}
	s.Rows = make([]SnapshotRow, len(rows))
	for i, r := range rows {
		s.Rows[i] = SnapshotRow{r.ShortID, isResidual(r), live.FiguresOf(&r.Usage)}
	}
	return s
}

// snapshotShare limits a node to 1/snapshotShare of all rows.
const snapshotShare = 8

// A snapshotStore holds the latest window of each node.
type snapshotStore struct {
	nodes map[string]NodeSnapshot
	rows  int
}

// put replaces a node's latest window if n is later. While more than maxRows rows are held, it
// removes the nodes whose windows ended before stale, which are not shown, and then the rows of
// the nodes that have the most, so that these displace no rows of nodes that have few.
func (s *snapshotStore) put(n NodeSnapshot, maxRows int, stale time.Time) {
	old := s.nodes[n.Node]
	if !n.To.After(old.To) {
		return
	}
	s.nodes[n.Node] = n
	s.rows += len(n.Rows) - len(old.Rows)
	for s.rows > maxRows {
		var first NodeSnapshot
		for _, other := range s.nodes {
			if len(other.Rows) > 0 && (first.Node == "" || other.evictsBefore(&first, stale)) {
				first = other
			}
		}
		s.rows -= len(first.Rows)
		if first.To.Before(stale) {
			delete(s.nodes, first.Node)
			continue
		}
		first.Rows = nil
		s.nodes[first.Node] = first
	}
}

// evictsBefore reports whether the rows of s are removed before those of other. Of nodes with
// as many rows, it is the one whose window is older.
func (s *NodeSnapshot) evictsBefore(other *NodeSnapshot, stale time.Time) bool {
	if old := s.To.Before(stale); old != other.To.Before(stale) {
		return old
	}
	return cmp.Or(cmp.Compare(len(other.Rows), len(s.Rows)), s.To.Compare(other.To)) < 0
}

// Snapshots returns the latest window of each node that was booked since the server started,
// ordered by node, without stale ones.
func (rc *Receiver) Snapshots() []NodeSnapshot {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	all := make([]NodeSnapshot, 0, len(rc.snapshots.nodes))
	for _, s := range rc.snapshots.nodes {
		if now.Sub(s.To) <= rc.cfg.SnapshotTTL {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b NodeSnapshot) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Snapshot returns the latest window of one node, or false if none was booked since the server
// started or it is stale.
func (rc *Receiver) Snapshot(node string) (NodeSnapshot, bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s, ok := rc.snapshots.nodes[node]
	return s, ok && time.Since(s.To) <= rc.cfg.SnapshotTTL
}

// Anomalies counts faults in the windows of a node that were booked since the server started.
type Anomalies struct {
	Violations int64 // sums of parts that were not their whole
	Missed     int64 // births and deaths that were not seen
}

// A SpoolUsage is the size of an agent's spool in its latest request.
type SpoolUsage struct {
	Bytes, Limit int64 // Limit is 0 if the agent did not state it
}

// NodeStatus returns the anomalies and the spool of a node.
func (rc *Receiver) NodeStatus(id string) (Anomalies, SpoolUsage) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s, ok := rc.nodes[id]
	if !ok {
		return Anomalies{}, SpoolUsage{}
	}
	return s.anomalies, s.spool
}

// Stats counts requests and their results since the server started.
type Stats struct {
	Accepted, Duplicates, OutOfOrder, Conflicts, Clones int64 // offers, by verdict
	Invalid, Denied, Unavailable                        int64 // offers that ended in an error of this kind; those of no kind are Unavailable
	Losses                                              int64 // reports of lost batches
	RateLimited                                         int64 // requests over a node's rate
	Rows, Bytes                                         int64 // of accepted batches: rows of windows, compressed bytes
	// Violations counts sums of parts that were not their whole in accepted batches, which their
	// senders reported or the receiver found.
	Violations    int64
	MetricsFailed int64 // batches that the metrics did not take
	Commits       int64
	CommitTime    time.Duration // of all commits
	Queue         int64         // rows that wait at present
	Nodes         int           // that sent
}

// Stats returns the present counts.
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
