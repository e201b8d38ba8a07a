package api

import (
	"context"
	"regexp"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
)

// scopeKey is the key of the scope in the context of a query.
type scopeKey struct{}

// WithScope returns a context in which queries see only the scope s.
func WithScope(ctx context.Context, s query.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// A scopedQueryable limits queries to the scope in their context. Without a scope it
// returns nothing.
type scopedQueryable struct {
	storage.SampleAndChunkQueryable
}

func (s scopedQueryable) Querier(from, to int64) (storage.Querier, error) {
	q, err := s.SampleAndChunkQueryable.Querier(from, to)
	if err != nil {
		return nil, err
	}
	return querier{q}, nil
}

func (s scopedQueryable) ChunkQuerier(from, to int64) (storage.ChunkQuerier, error) {
	q, err := s.SampleAndChunkQueryable.ChunkQuerier(from, to)
	if err != nil {
		return nil, err
	}
	return chunkQuerier{q}, nil
}

// scopeMatchers adds a matcher for the scope in ctx to the given ones. It returns false if
// the scope allows nothing.
func scopeMatchers(ctx context.Context, given []*labels.Matcher) ([]*labels.Matcher, bool) {
	s, ok := ctx.Value(scopeKey{}).(query.Scope)
	switch {
	case !ok:
		return nil, false
	case s.All:
		return given, true
	case len(s.Clusters) == 0 || len(s.Projects) > 0:
		return nil, false
	}
	names := make([]string, len(s.Clusters))
	for i, c := range s.Clusters {
		names[i] = regexp.QuoteMeta(c)
	}
	m, err := labels.NewMatcher(labels.MatchRegexp, metric.Cluster, strings.Join(names, "|"))
	if err != nil {
		return nil, false
	}
	return append(given[:len(given):len(given)], m), true
}

type querier struct{ storage.Querier }

func (q querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return storage.EmptySeriesSet()
	}
	return countSeries(ctx, q.Querier.Select(ctx, sorted, hints, ms...), hints)
}

func (q querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return nil, nil, nil
	}
	return limitValues(ctx, hints, func(hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.Querier.LabelValues(ctx, name, hints, ms...)
	})
}

func (q querier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return nil, nil, nil
	}
	return limitValues(ctx, hints, func(hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.Querier.LabelNames(ctx, hints, ms...)
	})
}

type chunkQuerier struct{ storage.ChunkQuerier }

func (q chunkQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.ChunkSeriesSet {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return storage.EmptyChunkSeriesSet()
	}
	return endWithRequest(ctx, q.ChunkQuerier.Select(ctx, sorted, hints, ms...))
}

func (q chunkQuerier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return nil, nil, nil
	}
	return q.ChunkQuerier.LabelValues(ctx, name, hints, ms...)
}

func (q chunkQuerier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	ms, ok := scopeMatchers(ctx, ms)
	if !ok {
		return nil, nil, nil
	}
	return q.ChunkQuerier.LabelNames(ctx, hints, ms...)
}
