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

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A node is what is known of one node's series.
type node struct {
	id            string
	cluster, name string
	residuals     [2]workload.ShortID // system and idle

	mu         sync.Mutex
	workloads  map[workload.ShortID]*namedWorkload
	end        int64 // end of its latest window, ms since 1970
	repeated   int64 // when last values were repeated
	shortLived *namedWorkload
	outdated   []storage.SeriesRef // of names that are others now
	refs       [gaugeCount]storage.SeriesRef
	levels     []storage.SeriesRef // of metric.Levels
	coverage   intervals           // of its windows
	boot       string              // of its latest window, and ...
	lastEnd    int64               // ... its end in ns of boottime
	quota      seriesQuota         // of workloads that have series of their own
	full       bool                // some are not named in what is appended now, for want of room

	newestEnd atomic.Int64 // at, for who does not hold it
	lastLate  atomic.Int64 // when something of a backlog came, ns since 1970
	overLimit atomic.Bool  // some had no series of their own since the start
}

// What a node has.
const (
	cpus = iota
	memory
	gaugeCount
)

var gauges = [gaugeCount]string{metric.CPUs, metric.Memory}

// A namedWorkload is a workload with a name.
type namedWorkload struct {
	batch.Name
	id         workload.ID
	refs       [usage.Limit]storage.SeriesRef
	last       [usage.Limit]float64
	total      [usage.Limit]int64 // the amounts that last was made of, where it was here
	had        usage.Set          // series that it has
	latest     usage.Set          // those of which its latest window says something
	info       storage.SeriesRef
	end        int64 // end of its latest window, ms since 1970; 0 is none yet
	namedSince int64 // since when it is known to be named and not seen, ms since 1970
	ended      bool
	restart    bool // it begins from zero with its next window
}

// resetTotals lets a sum begin from zero: what it lacks can be put before that, and not into
// what follows.
func (k *namedWorkload) resetTotals() {
	k.last, k.total, k.restart = [usage.Limit]float64{}, [usage.Limit]int64{}, true
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
	fresh := &node{id: id, cluster: e.Cluster, name: cmp.Or(e.Name, id), residuals: residuals(id), workloads: map[workload.ShortID]*namedWorkload{},
		shortLived: &namedWorkload{id: metric.ShortLived, Name: batch.Name{Name: "lived for less than a window"}},
		levels:     make([]storage.SeriesRef, len(metric.Levels)), quota: seriesQuota{limit: s.cfg.Workloads}}
	newest, err := s.newestSample(ctx, fresh)
	if err != nil {
		return nil, err
	}
	if err := s.restoreWorkloads(ctx, fresh, cmp.Or(newest, s.db.Head().MaxTime())); err != nil {
		return nil, err
	}
	if err := s.detectUnsampled(ctx, fresh, newest); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.unsampled[id]; ok {
		fresh.shortLived.resetTotals()
	}
	if n = s.nodes[id]; n == nil {
		n = fresh
		s.nodes[id] = n
	}
	return n, nil
}

// residuals are the workloads of a node that nobody runs: system and idle.
func residuals(node string) (shorts [2]workload.ShortID) {
	for i, kind := range []workload.Kind{workload.System, workload.Idle} {
		shorts[i], _ = workload.ShortIDOf(workload.NewID(node, kind, ""))
	}
	return shorts
}

// amount is what the latest value of a series was made of. Sums are of amounts: sums
// of values would stray by their rounding, and go back where a total comes that did
// not, which is a counter that began anew to who asks for a rate.
func (k *namedWorkload) amount(res usage.Resource) int64 {
	f := metric.FamilyOf(res)
	if f.Value(k.total[res]) == k.last[res] {
		return k.total[res]
	}
	return f.Amount(k.last[res])
}

// setNames takes what workloads are called, of as many as may have series.
func (n *node) setNames(names []batch.Name) {
	for i := range names {
		short, ok := workload.ShortIDOf(names[i].ID)
		if !ok {
			continue
		}
		k := n.workloads[short]
		if k == nil {
			if !n.hasRoom(short) {
				n.full = true
				continue
			}
			k = &namedWorkload{id: names[i].ID}
			n.workloads[short] = k
		}
		if k.id != names[i].ID {
			continue // two ids that begin alike: the first keeps the series
		}
		before, was := n.infoLabels(k), k.Name
		k.Name = names[i]
		if k.info != 0 && !labels.Equal(before, n.infoLabels(k)) {
			if !n.quota.allow(time.Now()) {
				k.Name = was // each name is a series
				continue
			}
			n.outdated = append(n.outdated, k.info)
			k.info = 0
		}
	}
}

// fetchNames asks for the names of workloads that no batch named since the start, and
// takes up what the database shows of them.
func (s *Store) fetchNames(ctx context.Context, n *node, ws []timeline.CutWindow) error {
	var unknown []workload.ShortID
	for i := range ws {
		for j := range ws[i].Rows {
			short := ws[i].Rows[j].ShortID
			switch {
			case n.workloads[short] != nil:
			case n.hasRoom(short):
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
	n.setNames(slices.Collect(maps.Values(found)))
	return nil
}

// restoreWorkloads takes up what the database shows of a node's workloads that were alive a
// moment before its latest sample, so that those that use nothing stay.
func (s *Store) restoreWorkloads(ctx context.Context, n *node, newest int64) error {
	alive, err := s.readLastValues(ctx, n, newest-2*repeatEvery.Milliseconds(), newest)
	if err != nil {
		return err
	}
	if b := alive[shortLivedID]; b != nil {
		n.shortLived.last, n.shortLived.end, n.shortLived.had = b.last, b.at, b.had
		delete(alive, shortLivedID)
	}
	found, err := s.names.Names(ctx, n.id, slices.Collect(maps.Keys(alive)))
	if err != nil {
		return err
	}
	for short, k := range alive {
		if !n.hasRoom(short) {
			continue
		}
		if name, ok := found[short]; ok && name.ID == k.id && name.Ended.IsZero() {
			n.workloads[short] = &namedWorkload{id: k.id, Name: name, last: k.last, had: k.had, end: k.at}
			n.end = max(n.end, k.at)
		}
	}
	if n.end > 0 {
		n.coverage = n.coverage.add(n.end-2*repeatEvery.Milliseconds(), n.end)
	}
	return nil
}

// addWindow notes a window. One that begins where the latest one ended follows it,
// however the clock was set between.
func (n *node) addWindow(w *usage.Window, from, to int64) {
	if w.Boot == n.boot && w.Start == n.lastEnd {
		from = min(from, n.end)
	}
	n.coverage = n.coverage.add(from, to)
	if to >= n.end {
		n.boot, n.lastEnd = w.Boot, w.End
	}
}

// noteEnd notes what a window says of how far its node is: a backlog may still add to what
// the ledger has of a gap.
func (n *node) noteEnd(end int64) {
	if end < n.end {
		n.lastLate.Store(time.Now().UnixNano())
	}
	n.newestEnd.Store(max(n.newestEnd.Load(), end))
}

// workloadLabels are those of a workload's series.
func (n *node) workloadLabels(f *metric.Family, id workload.ID) labels.Labels {
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

// nodeLabels are the labels of a series of the node's own.
func (n *node) nodeLabels(name string) labels.Labels {
	return labels.FromStrings(model.MetricNameLabel, name, metric.Cluster, n.cluster, metric.Node, n.name)
}

// levelLabels are the labels of a level of the node.
func (n *node) levelLabels(l *metric.Level) labels.Labels {
	if l.Label == "" {
		return n.nodeLabels(l.Name)
	}
	return labels.FromStrings(model.MetricNameLabel, l.Name, metric.Cluster, n.cluster, metric.Node, n.name, l.Label, l.Value)
}

// infoLabels are the labels of the series that says what a workload is called.
func (n *node) infoLabels(k *namedWorkload) labels.Labels {
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
	if k.id != metric.ShortLived {
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
