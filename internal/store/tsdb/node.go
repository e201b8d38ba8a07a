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

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A node is the state of one node's series.
type node struct {
	id            string
	cluster, name string
	jobs          bool                // the standalone jobs of a machine, which say nothing about the machine
	residuals     [2]workload.ShortID // system and idle

	mu         sync.Mutex
	workloads  map[workload.ShortID]*namedWorkload
	end        int64 // end of its latest window, ms since 1970
	repeated   int64 // time of the last repetition of values, ms since 1970
	shortLived *namedWorkload
	outdated   []storage.SeriesRef // info series with outdated names
	renamed    []*namedWorkload    // that have a new name since they ended
	refs       [gaugeCount]storage.SeriesRef
	levels     []storage.SeriesRef // of metric.Levels
	coverage   intervals           // of its windows
	boot       string              // boot id of its latest window
	lastEnd    int64               // end of its latest window, ns of boottime
	quota      seriesQuota         // of workloads and names that start series
	full       bool                // the limit keeps some workloads of this batch without names

	newestEnd atomic.Int64 // end of the newest window so far, for readers without mu, ms since 1970
	lastLate  atomic.Int64 // time at which the latest window of a backlog came, ns since 1970
	overLimit atomic.Bool  // some workload had no series of its own since the start
}

// Indexes of a node's gauges.
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
	total      [usage.Limit]int64 // amounts of last; stale for values restored from the database
	had        usage.Set          // existing series
	latest     usage.Set          // resources of its latest window
	info       storage.SeriesRef
	end        int64 // end of its latest window, ms since 1970; 0 is none yet
	namedSince int64 // since when it has a name but no window, ms since 1970
	ended      bool
	restart    bool // counters restart from zero with the next window
}

// resetTotals restarts the counters from zero: a backfill can write missing samples before
// the restart, but cannot change later ones.
func (k *namedWorkload) resetTotals() {
	k.last, k.total, k.restart = [usage.Limit]float64{}, [usage.Limit]int64{}, true
}

// node returns the state of a node, and restores it from the database if needed.
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
	shortLived, jobs := workload.ID(metric.ShortLived), registry.IsJobsMachine(e.MachineID)
	if jobs {
		shortLived = metric.ShortLivedJobs
	}
	fresh := &node{id: id, cluster: e.Cluster, name: cmp.Or(e.Name, id), jobs: jobs, residuals: residuals(id), workloads: map[workload.ShortID]*namedWorkload{},
		shortLived: &namedWorkload{id: shortLived, Name: batch.Name{Name: "lived for less than a window"}},
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
	if n = s.publish(fresh); n != fresh {
		return n, nil
	}
	// [Store.Rename] has ignored the node until now. After an error the names stay as they were read above.
	n.mu.Lock()
	defer n.mu.Unlock()
	if found, err := s.names.Names(ctx, n.id, slices.Collect(maps.Keys(n.workloads))); err == nil {
		n.setNames(slices.Collect(maps.Values(found)))
	}
	return n, nil
}

// publish adds a node to the store, and returns the one that the store has.
func (s *Store) publish(fresh *node) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[fresh.id]; n != nil {
		return n
	}
	if _, ok := s.unsampled[fresh.id]; ok {
		fresh.shortLived.resetTotals()
	}
	s.nodes[fresh.id] = fresh
	return fresh
}

// residuals returns the ids of a node's residual rows: system and idle.
func residuals(node string) (shorts [2]workload.ShortID) {
	for i, kind := range []workload.Kind{workload.System, workload.Idle} {
		shorts[i], _ = workload.ShortIDOf(workload.NewID(node, kind, ""))
	}
	return shorts
}

// noteValue notes an amount as the latest of a series, unless the workload has later windows.
func (k *namedWorkload) noteValue(res usage.Resource, at, amount int64) {
	if at >= k.end {
		k.last[res], k.total[res] = metric.FamilyOf(res).Value(amount), amount
	}
}

// amount returns the amount of the latest value of a series. Sums use amounts, because sums
// of rounded values would drift, and a counter that falls below an earlier value when the
// next total comes is a counter reset to rate().
func (k *namedWorkload) amount(res usage.Resource) int64 {
	f := metric.FamilyOf(res)
	if f.Value(k.total[res]) == k.last[res] {
		return k.total[res]
	}
	return f.Amount(k.last[res])
}

// setNames updates the names of workloads, and adds workloads up to the limit.
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
			continue // collision of short ids: the first workload keeps the series
		}
		before, was := n.infoLabels(k), k.Name
		k.Name = withPlace(names[i], was)
		if k.info != 0 && !labels.Equal(before, n.infoLabels(k)) {
			if !n.quota.allow(time.Now()) {
				k.Name = was // each name needs a new series
				continue
			}
			if k.ended {
				n.renamed = append(n.renamed, k) // its info series has ended
			} else {
				n.outdated = append(n.outdated, k.info)
			}
			k.info = 0
		}
	}
}

// withPlace returns a new name of a workload, with the pod that the former one has if the new one has none, and
// with the name of its container if the new one is only its id: an agent does not know them, or not yet.
func withPlace(name, was batch.Name) batch.Name {
	placed := was.Labels[batch.LabelNamespace] != "" && name.Labels[batch.LabelNamespace] == "" && (name.Kind == workload.Pod || name.Kind == workload.Container)
	if !placed && (was.Name == "" || !name.IsShortID()) {
		return name
	}
	name.Name, name.Job, name.Labels = was.Name, was.Job, was.Labels
	return name
}

// RenameNode takes the present cluster and name of a node, of which its next samples have series. Its series under
// another name, which may be that of another node now, end as nothing is appended to them.
func (s *Store) RenameNode(id, cluster, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && (n.cluster != cluster || n.name != cmp.Or(name, id)) {
		delete(s.nodes, id)
	}
}

// Rename takes new names of workloads of a node. Their info series end with the next batch, and others begin.
// Names of other workloads are ignored.
func (s *Store) Rename(id string, names []batch.Name) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()
	if n == nil {
		return // it gets the names with its next batch
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setNames(slices.DeleteFunc(slices.Clone(names), func(name batch.Name) bool {
		short, ok := workload.ShortIDOf(name.ID)
		return !ok || n.workloads[short] == nil
	}))
}

// fetchNames looks up the names of workloads that no batch has named since the start.
func (s *Store) fetchNames(ctx context.Context, n *node, ws []walltime.CutWindow) error {
	unknown := map[workload.ShortID]bool{}
	for i := range ws {
		for j := range ws[i].Rows {
			short := ws[i].Rows[j].ShortID
			switch {
			case n.workloads[short] != nil:
			case n.hasRoom(short):
				unknown[short] = true
			default:
				n.full = true
			}
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	found, err := s.names.Names(ctx, n.id, slices.Collect(maps.Keys(unknown)))
	if err != nil {
		return err
	}
	n.setNames(slices.Collect(maps.Values(found)))
	return nil
}

// restoreWorkloads restores the workloads of a node that were alive shortly before its newest
// sample from the database, so that the series of idle workloads continue.
func (s *Store) restoreWorkloads(ctx context.Context, n *node, newest int64) error {
	alive, err := s.readLastValues(ctx, n, newest-2*repeatEvery.Milliseconds(), newest)
	if err != nil {
		return err
	}
	if b := alive[shortLivedID]; b != nil {
		n.shortLived.last, n.shortLived.end, n.shortLived.had = b.last, b.at, b.had
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

// addWindow adds a window to the coverage. A window that starts at the boottime at which the
// latest one ended follows it, even if the wall clock was set in between.
func (n *node) addWindow(w *usage.Window, from, to int64) {
	if w.Boot == n.boot && w.Start == n.lastEnd {
		from = min(from, n.end)
	}
	n.coverage = n.coverage.add(from, to)
	if to >= n.end {
		n.boot, n.lastEnd = w.Boot, w.End
	}
}

// noteEnd records the end of a window. While windows of a backlog come, the ledger may still
// get more minutes of a gap.
func (n *node) noteEnd(end int64) {
	if end < n.end {
		n.lastLate.Store(time.Now().UnixNano())
	}
	n.newestEnd.Store(max(n.newestEnd.Load(), end))
}

// workloadLabels returns the labels of a workload's series.
func (n *node) workloadLabels(f *metric.Family, id workload.ID) labels.Labels {
	b := labels.NewBuilder(n.nodeLabels(f.Name))
	b.Set(metric.Domain, f.Domain)
	b.Set(metric.Workload, string(id))
	return b.Labels()
}

// nodeLabels returns the labels of one of the node's own series.
func (n *node) nodeLabels(name string) labels.Labels {
	return labels.FromStrings(model.MetricNameLabel, name, metric.Cluster, n.cluster, metric.Node, n.name)
}

// levelLabels returns the labels of a level of the node.
func (n *node) levelLabels(l *metric.Level) labels.Labels {
	if l.Label == "" {
		return n.nodeLabels(l.Name)
	}
	return labels.FromStrings(model.MetricNameLabel, l.Name, metric.Cluster, n.cluster, metric.Node, n.name, l.Label, l.Value)
}

// infoLabels returns the labels of a workload's info series.
func (n *node) infoLabels(k *namedWorkload) labels.Labels {
	b := labels.NewBuilder(n.nodeLabels(metric.Info)) // which leaves out empty labels
	b.Set(metric.Workload, string(k.id))
	if k.id != n.shortLived.id {
		b.Set("kind", k.Kind.String())
	}
	b.Set("name", k.Name.Name)
	b.Set("job", k.Job)
	b.Set("user", k.User)
	b.Set("project", k.Project)
	b.Set("namespace", k.Labels[batch.LabelNamespace])
	b.Set("pod", k.Labels[batch.LabelPod])
	b.Set("container", k.Labels[batch.LabelContainer])
	b.Set("parent", string(k.Parent))
	return b.Labels()
}
