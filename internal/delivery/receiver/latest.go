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

// A Present is a node as it was in its latest window. Nobody changes it.
type Present struct {
	Node     string
	From, To time.Time
	CPUs     int
	Total    usage.Usage // of the machine: see batch.Window
	Parts    metric.Parts
	Rows     []PresentRow
}

// A PresentRow is what one workload used in it. A workload that used nothing has none,
// nor has one that is not among the busiest of a node that has very many.
type PresentRow struct {
	Workload batch.Short
	Usage    usage.Usage
}

// present is a window as it is shown, with at most so many rows. Of more, those stay
// that used most of the processors.
func present(node string, w *batch.Window, by time.Duration, most int) Present {
	p := Present{Node: node, From: timeline.Start(w, by), To: timeline.End(w, by), CPUs: w.CPUs, Total: w.Total, Parts: metric.PartsOf(node, w)}
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
	p.Rows = make([]PresentRow, len(rows))
	for i, r := range rows {
		p.Rows[i] = PresentRow{r.Workload, r.Usage}
	}
	return p
}

// share is the part of the rows of all nodes that one may have: one over it.
const share = 8

// live holds the latest window of each node.
type live struct {
	nodes map[string]Present
	rows  int
}

// put replaces a node's latest window where p is later. Where more than limit rows
// would be held, the nodes go that ended before stale, which nobody is shown, and then
// the rows of those that have the most: one that has many takes the room of none that
// has few.
func (l *live) put(p Present, limit int, stale time.Time) {
	old := l.nodes[p.Node]
	if !p.To.After(old.To) {
		return
	}
	l.nodes[p.Node] = p
	l.rows += len(p.Rows) - len(old.Rows)
	for l.rows > limit {
		var first Present
		for _, q := range l.nodes {
			if len(q.Rows) > 0 && (first.Node == "" || q.before(&first, stale)) {
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

// before says whether p goes before q where room is needed. Of nodes that have as many
// rows, the one goes that was heard of longest ago.
func (p *Present) before(q *Present, stale time.Time) bool {
	if old := p.To.Before(stale); old != q.To.Before(stale) {
		return old
	}
	return cmp.Or(cmp.Compare(len(q.Rows), len(p.Rows)), p.To.Compare(q.To)) < 0
}

// Latest returns the latest window of each node that was booked since the server
// started, by node, without those that are stale.
func (in *Receiver) Latest() []Present {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	all := make([]Present, 0, len(in.live.nodes))
	for _, p := range in.live.nodes {
		if now.Sub(p.To) <= in.cfg.Stale {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Present) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// LatestOf returns the latest window of one node; false where none was booked since
// the server started that is not stale.
func (in *Receiver) LatestOf(node string) (Present, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p, ok := in.live.nodes[node]
	return p, ok && time.Since(p.To) <= in.cfg.Stale
}

// Flaws are what was wrong with the windows of a node that were booked since the
// server started.
type Flaws struct {
	Violations int64 // books that did not add up
	Missed     int64 // births and deaths that were not seen
}

// A Spool is how full an agent's spool was when it sent last.
type Spool struct {
	Bytes, Limit int64 // Limit is 0 where the agent said nothing
}

// Node returns the flaws of a node, and how full its spool is.
func (in *Receiver) Node(id string) (Flaws, Spool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	o, ok := in.nodes[id]
	if !ok {
		return Flaws{}, Spool{}
	}
	return o.flaws, o.spool
}

// Stats counts what came since the server started.
type Stats struct {
	Taken, Known, Behind, Conflicts, Clones int64 // offers, by verdict
	Invalid, Denied, Unavailable            int64 // offers that ended in an error of this kind, or of none
	Lost                                    int64 // words that batches are gone
	Limited                                 int64 // requests over a node's rate
	Rows, Bytes                             int64 // of windows, and as they were sent: of what was taken
	// Violations counts windows' sums of parts that were not their whole, as their
	// senders said or as was found here: of what was taken.
	Violations int64
	Unseen     int64 // batches that the metrics did not take
	Commits    int64
	Committing time.Duration // spent in commits
	Queue      int64         // rows that wait now
	Nodes      int           // heard of
}

// Stats returns the counts as they are now.
func (in *Receiver) Stats() Stats {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.stats
	s.Queue, s.Nodes = in.light.rows.Load()+in.heavy.rows.Load(), len(in.nodes)
	return s
}

// count adds the outcome of an offer.
func (s *Stats) count(r batch.Reply, err error) {
	switch {
	case errors.Is(err, fault.ErrInvalid):
		s.Invalid++
	case errors.Is(err, fault.ErrDenied):
		s.Denied++
	case err != nil:
		s.Unavailable++
	case r.Verdict == batch.Taken:
		s.Taken++
	case r.Verdict == batch.Known:
		s.Known++
	case r.Verdict == batch.Behind:
		s.Behind++
	case r.Verdict == batch.Conflict:
		s.Conflicts++
	case r.Verdict == batch.Clone:
		s.Clones++
	}
}
