package tsdb

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A node is what is known of one node's series.
type node struct {
	id            string
	cluster, name string
	residuals     [2]batch.Short // system and idle

	mu        sync.Mutex
	workloads map[batch.Short]*known
	at        int64 // end of its latest window, ms since 1970
	lingered  int64 // when last values were repeated
	brief     *known
	outdated  []storage.SeriesRef // of names that are others now
	refs      [gaugeCount]storage.SeriesRef
	levels    []storage.SeriesRef // of metric.Levels
	spans     spans               // of its windows
	boot      string              // of its latest window, and ...
	last      int64               // ... its end in ns of boottime
	quota     quota               // of workloads that have series of their own
	full      bool                // some are not named in what is appended now, for want of room

	seen    atomic.Int64 // at, for who does not hold it
	drained atomic.Int64 // when something of a backlog came, ns since 1970
	crowded atomic.Bool  // some had no series of their own since the start
}

// What a node has.
const (
	cpus = iota
	memory
	gaugeCount
)

var gauges = [gaugeCount]string{metric.CPUs, metric.Memory}

// A known workload is one with a name.
type known struct {
	batch.Name
	id    workload.ID
	refs  [usage.Limit]storage.SeriesRef
	last  [usage.Limit]float64
	total [usage.Limit]int64 // the amounts that last was made of, where it was here
	had   usage.Set          // series that it has
	fresh usage.Set          // those of which its latest window says something
	info  storage.SeriesRef
	at    int64 // end of its latest window, ms since 1970; 0 is none yet
	named int64 // since when it is known to be named and not seen, ms since 1970
	ended bool
	again bool // it begins from zero with its next window
}

// anew lets a sum begin from zero: what it lacks can be put before that, and not into
// what follows.
func (k *known) anew() {
	k.last, k.total, k.again = [usage.Limit]float64{}, [usage.Limit]int64{}, true
}

// node finds a node, and asks for its name where it is not known yet.
func (s *Store) node(ctx context.Context, id string) (*node, error) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()
	if n != nil {
		return n, nil
	}
	e, err := s.names.Node(ctx, id)
	if err != nil {
		return nil, err
	}
	fresh := &node{id: id, cluster: e.Cluster, name: cmp.Or(e.Name, id), residuals: residuals(id), workloads: map[batch.Short]*known{},
		brief:  &known{id: metric.Brief, Name: batch.Name{Name: "lived for less than a window"}},
		levels: make([]storage.SeriesRef, len(metric.Levels)), quota: quota{most: s.cfg.Workloads}}
	newest, err := s.newest(ctx, fresh)
	if err != nil {
		return nil, err
	}
	if err := s.resume(ctx, fresh, cmp.Or(newest, s.db.Head().MaxTime())); err != nil {
		return nil, err
	}
	if err := s.behind(ctx, fresh, newest); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.holes[id]; ok {
		fresh.brief.anew()
	}
	if n = s.nodes[id]; n == nil {
		n = fresh
		s.nodes[id] = n
	}
	return n, nil
}

// residuals are the workloads of a node that nobody runs: system and idle.
func residuals(node string) (shorts [2]batch.Short) {
	for i, kind := range []workload.Kind{workload.System, workload.Idle} {
		shorts[i], _ = batch.ShortOf(workload.NewID(node, kind, ""))
	}
	return shorts
}

// amount is what the latest value of a series was made of. Sums are of amounts: sums
// of values would stray by their rounding, and go back where a total comes that did
// not, which is a counter that began anew to who asks for a rate.
func (k *known) amount(res usage.Resource) int64 {
	f := metric.Of(res)
	if f.Value(k.total[res]) == k.last[res] {
		return k.total[res]
	}
	return f.Amount(k.last[res])
}

// learn takes what workloads are called, of as many as may have series.
func (n *node) learn(names []batch.Name) {
	for i := range names {
		short, ok := batch.ShortOf(names[i].ID)
		if !ok {
			continue
		}
		k := n.workloads[short]
		if k == nil {
			if !n.room(short) {
				n.full = true
				continue
			}
			k = &known{id: names[i].ID}
			n.workloads[short] = k
		}
		if k.id != names[i].ID {
			continue // two ids that begin alike: the first keeps the series
		}
		before, was := n.info(k), k.Name
		k.Name = names[i]
		if k.info != 0 && !labels.Equal(before, n.info(k)) {
			if !n.quota.take(time.Now()) {
				k.Name = was // each name is a series
				continue
			}
			n.outdated = append(n.outdated, k.info)
			k.info = 0
		}
	}
}

// fetch asks for the names of workloads that no batch named since the start, and
// takes up what the database shows of them.
func (s *Store) fetch(ctx context.Context, n *node, ws []batch.Window) error {
	var unknown []batch.Short
	for i := range ws {
		for j := range ws[i].Rows {
			short := ws[i].Rows[j].Workload
			switch {
			case n.workloads[short] != nil:
			case n.room(short):
				unknown = append(unknown, short)
			default:
				n.full = true
			}
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	found, err := s.names.Names(ctx, n.id, slices.Compact(unknown))
	if err != nil {
		return err
	}
	n.learn(slices.Collect(maps.Values(found)))
	return nil
}

// resume takes up what the database shows of a node's workloads that were alive a
// moment before its latest sample, so that those that use nothing stay.
func (s *Store) resume(ctx context.Context, n *node, newest int64) error {
	alive, err := s.shows(ctx, n, newest-2*rest.Milliseconds(), newest)
	if err != nil {
		return err
	}
	if b := alive[briefly]; b != nil {
		n.brief.last, n.brief.at, n.brief.had = b.last, b.at, b.had
		delete(alive, briefly)
	}
	found, err := s.names.Names(ctx, n.id, slices.Collect(maps.Keys(alive)))
	if err != nil {
		return err
	}
	for short, k := range alive {
		if !n.room(short) {
			continue
		}
		if name, ok := found[short]; ok && name.ID == k.id && name.Ended.IsZero() {
			n.workloads[short] = &known{id: k.id, Name: name, last: k.last, had: k.had, at: k.at}
			n.at = max(n.at, k.at)
		}
	}
	if n.at > 0 {
		n.spans = n.spans.add(n.at-2*rest.Milliseconds(), n.at)
	}
	return nil
}

// follow notes a window. One that begins where the latest one ended follows it,
// however the clock was set between.
func (n *node) follow(w *batch.Window, from, to int64) {
	if w.Boot == n.boot && w.Start == n.last {
		from = min(from, n.at)
	}
	n.spans = n.spans.add(from, to)
	if to >= n.at {
		n.boot, n.last = w.Boot, w.End
	}
}

// note notes what a window says of how far its node is: a backlog may still add to what
// the ledger has of a hole.
func (n *node) note(end int64) {
	if end < n.at {
		n.drained.Store(time.Now().UnixNano())
	}
	n.seen.Store(max(n.seen.Load(), end))
}

// labels are those of a workload's series.
func (n *node) labels(f *metric.Family, id workload.ID) labels.Labels {
	b := labels.NewScratchBuilder(5)
	b.Add(model.MetricNameLabel, f.Name)
	b.Add(metric.Cluster, n.cluster)
	if f.Domain != "" {
		b.Add(metric.Domain, f.Domain)
	}
	b.Add(metric.Node, n.name)
	b.Add(metric.Workload, string(id))
	b.Sort()
	return b.Labels()
}

// own are the labels of a series of the node's own.
func (n *node) own(name string) labels.Labels {
	return labels.FromStrings(model.MetricNameLabel, name, metric.Cluster, n.cluster, metric.Node, n.name)
}

// level are the labels of a level of the node.
func (n *node) level(l *metric.Level) labels.Labels {
	if l.Label == "" {
		return n.own(l.Name)
	}
	return labels.FromStrings(model.MetricNameLabel, l.Name, metric.Cluster, n.cluster, metric.Node, n.name, l.Label, l.Value)
}

// info are the labels of the series that says what a workload is called.
func (n *node) info(k *known) labels.Labels {
	b := labels.NewScratchBuilder(12)
	add := func(name, v string) {
		if v != "" {
			b.Add(name, v)
		}
	}
	add(model.MetricNameLabel, metric.Info)
	add(metric.Cluster, n.cluster)
	add(metric.Node, n.name)
	add(metric.Workload, string(k.id))
	if k.id != metric.Brief {
		add("kind", k.Kind.String())
	}
	add("name", k.Name.Name)
	add("job", k.Job)
	add("user", k.User)
	add("project", k.Project)
	add("namespace", k.Labels["io.kubernetes.pod.namespace"])
	add("pod", k.Labels["io.kubernetes.pod.name"])
	add("container", k.Labels["io.kubernetes.container.name"])
	add("parent", string(k.Parent))
	b.Sort()
	return b.Labels()
}
