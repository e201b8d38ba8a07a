package ledgertest

import (
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A model is the expected content of a ledger, in plain maps.
type model struct {
	streams map[batch.Stream]*modelStream
	minutes map[rowKey]*usage.Usage      // a key with node and workload
	nodes   map[rowKey]*batch.NodeMinute // a key with node only
	jobs    map[rowKey]string            // by node and workload
	through map[string]time.Time
	gaps    map[string]int
}

type rowKey struct {
	node     string
	workload workload.ShortID
	minute   int64
}

type modelStream struct {
	node  string
	taken []*batch.Entry // by number from 1; nil if it was lost
	last  batch.Hash
}

func newModel() *model {
	return &model{
		streams: map[batch.Stream]*modelStream{}, minutes: map[rowKey]*usage.Usage{}, nodes: map[rowKey]*batch.NodeMinute{},
		jobs: map[rowKey]string{}, through: map[string]time.Time{}, gaps: map[string]int{},
	}
}

// book books an entry that must be accepted.
func (m *model) book(e *batch.Entry) {
	s := m.streams[e.Stream]
	s.taken = append(s.taken, e)
	s.last = e.Hash
	for _, row := range e.Minutes {
		if !hasContent(&row.Usage) {
			continue
		}
		at := rowKey{e.Node, row.Workload, row.Minute}
		if m.minutes[at] == nil {
			m.minutes[at] = &usage.Usage{}
		}
		u := row.Usage
		u.Covered = u.Covered.Round(time.Millisecond)
		m.minutes[at].Add(&u)
	}
	for _, row := range e.Nodes {
		at := rowKey{node: e.Node, minute: row.Minute}
		n := m.nodes[at]
		if n == nil {
			n = &batch.NodeMinute{Minute: row.Minute}
			m.nodes[at] = n
		}
		addNode(n, &row)
	}
	for _, n := range e.Names {
		short, _ := workload.ShortIDOf(n.ID)
		if at := (rowKey{node: e.Node, workload: short}); n.Job != "" {
			m.jobs[at] = n.Job
		}
	}
	m.gaps[e.Node] += len(e.Gaps)
	if e.Through.After(m.through[e.Node]) {
		m.through[e.Node] = e.Through
	}
}

// hasContent reports whether a ledger stores usage: whether anything was measured, or for how long, in whole
// milliseconds.
func hasContent(u *usage.Usage) bool {
	return u.Present != 0 || u.Covered.Round(time.Millisecond) != 0
}

func addNode(to, n *batch.NodeMinute) {
	to.Covered += n.Covered.Round(time.Millisecond)
	to.CPUs = max(to.CPUs, n.CPUs)
	for i := range n.Whole {
		to.Whole[i] += n.Whole[i]
		to.Skew[i] += n.Skew[i]
	}
	to.Violations += n.Violations
	to.Lost += n.Lost
	to.Total.Add(&n.Total)
}

// usage returns the expected rows of the given width, for the keys that exist.
func (m *model) usage(width int64, there func(rowKey) bool) map[rowKey]*usage.Usage {
	rows := map[rowKey]*usage.Usage{}
	for at, u := range m.minutes {
		at.minute -= at.minute % width
		if !there(at) {
			continue
		}
		if rows[at] == nil {
			rows[at] = &usage.Usage{}
		}
		rows[at].Add(u)
	}
	return rows
}

// whole returns the same for nodes.
func (m *model) whole(width int64, there func(rowKey) bool) map[rowKey]*batch.NodeMinute {
	rows := map[rowKey]*batch.NodeMinute{}
	for at, n := range m.nodes {
		at.minute -= at.minute % width
		if !there(at) {
			continue
		}
		if rows[at] == nil {
			rows[at] = &batch.NodeMinute{Minute: at.minute}
		}
		addNode(rows[at], n)
	}
	return rows
}

// groups returns the sums of CPU by job and day.
func (m *model) groups(to int64) map[group]int64 {
	sums := map[group]int64{}
	for at, u := range m.usage(dayMinutes, func(at rowKey) bool { return at.minute < to }) {
		if v, ok := u.Get(usage.CPU); ok {
			sums[group{m.jobs[rowKey{node: at.node, workload: at.workload}], at.minute}] += v
		}
	}
	maps.DeleteFunc(sums, func(_ group, v int64) bool { return v == 0 })
	return sums
}

type group struct {
	job string
	day int64
}

// nameless returns the entry's workloads without a name, in order.
func (m *model) nameless(e *batch.Entry, named map[rowKey]bool) []workload.ShortID {
	set := map[workload.ShortID]bool{}
	for _, row := range e.Minutes {
		if !named[rowKey{node: e.Node, workload: row.Workload}] {
			set[row.Workload] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}
