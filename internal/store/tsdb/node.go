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

// A namedWorkload is a workload with a name. A server has one for each workload that lives, so it holds only what is needed.
type namedWorkload struct {
	seriesName
	id         workload.ID
	had        usage.Set     // existing series
	series     []seriesState // of had, in the order of the resources
	latest     usage.Set     // resources of its latest window
	info       storage.SeriesRef
	end        int64 // end of its latest window, ms since 1970; 0 is none yet
	namedSince int64 // since when it has a name but no window, ms since 1970
	ended      bool
	restart    bool // counters restart from zero with the next window
}

// A seriesName is what the info series of a workload says of it.
type seriesName struct {
	kind                      workload.Kind
	parent                    workload.ID
	name, job, user, project  string
	namespace, pod, container string
	uid                       string // of the pod
}

func seriesNameOf(n *batch.Name) seriesName {
	return seriesName{kind: n.Kind, parent: n.Parent, name: n.Name, job: n.Job, user: n.User, project: n.Project,
		namespace: n.Labels[batch.LabelNamespace], pod: n.Labels[batch.LabelPod], container: n.Labels[batch.LabelContainer], uid: n.Labels[batch.LabelPodUID]}
}

// A seriesState is the state of one series of a workload.
type seriesState struct {
	ref   storage.SeriesRef
	last  float64
	total int64 // the amount of last; stale for values restored from the database
}

// of returns the state of the series of a resource, which had gets if it does not have it. It is valid until the next call.
func (k *namedWorkload) of(res usage.Resource) *seriesState {
	at := (k.had & (usage.SetOf(res) - 1)).Len()
	if !k.had.Has(res) {
		k.had |= usage.SetOf(res)
		k.series = slices.Insert(k.series, at, seriesState{})
	}
	return &k.series[at]
}

// resetTotals restarts the counters from zero: a backfill can write missing samples before
// the restart, but cannot change later ones.
func (k *namedWorkload) resetTotals() {
	for i := range k.series {
		k.series[i].last, k.series[i].total = 0, 0
	}
	k.restart = true
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
		shortLived: &namedWorkload{id: shortLived, seriesName: seriesName{name: "lived for less than a window"}},
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
		of := k.of(res)
		of.last, of.total = metric.FamilyOf(res).Value(amount), amount
	}
}

// amount returns the amount of the latest value of a series. Sums use amounts, because sums
// of rounded values would drift, and a counter that falls below an earlier value when the
// next total comes is a counter reset to rate().
func (k *namedWorkload) amount(res usage.Resource) int64 {
	f, of := metric.FamilyOf(res), k.of(res)
	if f.Value(of.total) == of.last {
		return of.total
	}
	return f.Amount(of.last)
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
		now := withPlace(&names[i], k.seriesName)
		if k.info != 0 && now != k.seriesName {
			if !n.quota.allow(time.Now()) {
				continue // each name needs a new series
			}
			if k.ended {
				n.renamed = append(n.renamed, k) // its info series has ended
			} else {
				n.outdated = append(n.outdated, k.info)
			}
			k.info = 0
		}
		k.seriesName = now
	}
}

// withPlace returns a new name of a workload, with the pod that the former one has if the new one has none, and
// with the name of its container if the new one is only its id: an agent does not know them, or not yet.
func withPlace(name *batch.Name, was seriesName) seriesName {
	now := seriesNameOf(name)
	placed := was.namespace != "" && now.namespace == "" && (now.kind == workload.Pod || now.kind == workload.Container)
	if placed || was.name != "" && name.IsShortID() {
		now.name, now.job, now.namespace, now.pod, now.container, now.uid = was.name, was.job, was.namespace, was.pod, was.container, was.uid
	}
	return now
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
		n.shortLived.had, n.shortLived.series, n.shortLived.end = b.had, b.series, b.end
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
			k.seriesName = seriesNameOf(&name)
			n.workloads[short] = k
			n.end = max(n.end, k.end)
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
	if f.Label != "" {
		b.Set(f.Label, f.LabelValue)
	}
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
		b.Set("kind", k.kind.String())
	}
	b.Set("name", k.name)
	b.Set("job", k.job)
	b.Set("user", k.user)
	b.Set("project", k.project)
	b.Set("namespace", k.namespace)
	b.Set("pod", k.pod)
	b.Set("container", k.container)
	b.Set("uid", k.uid)
	b.Set("parent", string(k.parent))
	return b.Labels()
}
