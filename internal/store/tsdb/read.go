package tsdb

import (
	"context"
	"errors"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// shortLivedID is the id of a node's series metric.ShortLived.
const shortLivedID = workload.ShortID(0)

// readLastValues returns the workloads of a node, without names, with the last values of their counters between from and
// to, without series that ended.
func (s *Store) readLastValues(ctx context.Context, n *node, from, to int64) (map[workload.ShortID]*namedWorkload, error) {
	all := map[workload.ShortID]*namedWorkload{}
	err := s.eachCounter(ctx, n, from, to, func(id workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
		at, v := never, 0.0
		for it.Next() == chunkenc.ValFloat {
			at, v = it.At()
		}
		if at == never || value.IsStaleNaN(v) {
			return
		}
		k := all[short]
		if k == nil {
			k = &namedWorkload{id: id}
			all[short] = k
		}
		k.of(res).last, k.end = v, max(k.end, at)
	})
	return all, err
}

// eachCounter calls f with the samples of each counter of a node's workloads between from
// and to that matches only.
func (s *Store) eachCounter(ctx context.Context, n *node, from, to int64, f func(workload.ID, workload.ShortID, usage.Resource, chunkenc.Iterator), only ...*labels.Matcher) (err error) {
	q, err := s.db.Querier(from, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	found := q.Select(ctx, false, &storage.SelectHints{Start: from, End: to}, append(only,
		labels.MustNewMatcher(labels.MatchEqual, metric.Cluster, n.cluster),
		labels.MustNewMatcher(labels.MatchEqual, metric.Node, n.name),
		labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, "mete_workload_.+_total"))...)
	var it chunkenc.Iterator
	for found.Next() {
		one := found.At()
		ls := one.Labels()
		res, ok := metric.FindResource(ls.Get(model.MetricNameLabel), ls.Get)
		id := workload.ID(ls.Get(metric.Workload))
		short, valid := workload.ShortIDOf(id)
		if !ok || !valid && id != n.shortLived.id {
			continue
		}
		if id == n.shortLived.id {
			short = shortLivedID
		}
		it = one.Iterator(it)
		f(id, short, res, it)
	}
	return found.Err()
}

// amountOf converts a value of a series to an amount in the ledger's units.
func amountOf(r usage.Resource, v float64) int64 { return metric.FamilyOf(r).Amount(v) }
