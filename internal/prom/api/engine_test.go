package api

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/teststorage"

	"mete.dev/mete/internal/model/query"
)

// Prometheus's own PromQL tests pass with this engine's options and the scoped storage.
// They need experimental features of the language.
func TestLanguage(t *testing.T) {
	t.Parallel()
	opts := Default().limits().engineOpts(50_000_000, time.Hour, parser.NewParser(promqltest.TestParserOpts), slog.New(slog.DiscardHandler))
	opts.EnableDelayedNameRemoval, opts.UseStartTimestamps = true, true
	promqltest.RunBuiltinTestsWithStorage(t, promql.NewEngine(opts), func(t testing.TB) storage.Storage {
		db := teststorage.New(t, func(o *tsdb.Options) {
			o.EnableSTStorage, o.EnableHistogramSTEncoding, o.FloatChunkEncoding = true, true, chunkenc.EncXOR2
		})
		return unscopedStorage{db, scopedQueryable{db}}
	})
}

// unscopedStorage queries a storage with a scope that allows everything.
type unscopedStorage struct {
	storage.Storage
	scoped scopedQueryable
}

func (e unscopedStorage) Querier(from, to int64) (storage.Querier, error) {
	q, err := e.scoped.Querier(from, to)
	return unscopedQuerier{q}, err
}

type unscopedQuerier struct{ storage.Querier }

func (a unscopedQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	return a.Querier.Select(WithScope(ctx, query.Scope{All: true}), sorted, hints, ms...)
}

// A query returns only series of the clusters in its scope, and nothing without a scope.
func TestScope(t *testing.T) {
	t.Parallel()
	db := teststorage.New(t)
	app := db.Appender(t.Context())
	for _, c := range []string{"a", "b", "a|b", ""} {
		if _, err := app.Append(0, labels.FromStrings(model.MetricNameLabel, "m", "cluster", c, "only_"+string(rune('p'+len(c))), c+"!"), 1000, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Timeout = time.Hour
	e := Engine(cfg, nil, slog.New(slog.DiscardHandler))
	s := scopedQueryable{db}
	for _, c := range []struct {
		name  string
		scope *query.Scope
		query string
		want  int
	}{
		{"all", &query.Scope{All: true}, `m`, 4},
		{"none", nil, `m`, 0},
		{"one", &query.Scope{Clusters: []string{"a"}}, `m`, 1},
		{"its own", &query.Scope{Clusters: []string{"a"}}, `m{cluster="a"}`, 1},
		{"another", &query.Scope{Clusters: []string{"a"}}, `m{cluster="b"}`, 0},
		{"or", &query.Scope{Clusters: []string{"a"}}, `m{cluster="b"} or m{cluster!="a"} or {cluster=~".+"} offset -1s`, 1},
		{"two", &query.Scope{Clusters: []string{"a", "b"}}, `m`, 2},
		{"a name like an expression", &query.Scope{Clusters: []string{"a|b"}}, `m`, 1},
		{"projects are not in series", &query.Scope{Clusters: []string{"a"}, Projects: []string{"p"}}, `m`, 0},
		{"no cluster", &query.Scope{}, `m`, 0},
	} {
		ctx := t.Context()
		if c.scope != nil {
			ctx = WithScope(ctx, *c.scope)
		}
		q, err := e.NewInstantQuery(ctx, s, nil, c.query, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		v, err := q.Exec(ctx).Vector()
		if err != nil || len(v) != c.want {
			t.Errorf("%s: %s returns %v, %v; want %d series", c.name, c.query, v, err, c.want)
		}
		q.Close()
	}
	ctx := WithScope(t.Context(), query.Scope{Clusters: []string{"a"}})
	q, err := s.Querier(0, 2000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	values, _, err := q.LabelValues(ctx, "cluster", nil)
	if err != nil || len(values) != 1 {
		t.Errorf("label values of cluster: %v, %v", values, err)
	}
	names, _, err := q.LabelNames(ctx, nil)
	if err != nil || len(names) != 3 {
		t.Errorf("label names: %v, %v", names, err)
	}
	cq, err := s.ChunkQuerier(0, 2000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cq.Close() }()
	n := 0
	set := cq.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, "m"))
	for set.Next() {
		n++
	}
	if n != 1 {
		t.Errorf("%d series as chunks, want 1", n)
	}
}
