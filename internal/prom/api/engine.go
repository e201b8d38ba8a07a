package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/store/querylimit"
)

// Engine returns an engine for queries that do not come over the API, such as rules, with
// the API's limits. queryLog may be nil.
func Engine(cfg Config, queryLog *Log, log *slog.Logger) promql.QueryEngine {
	l := cfg.limits()
	opts := l.engineOpts(l.large.samples, cfg.Timeout, parser.NewParser(parser.Options{}), log)
	opts.ActiveQueryTracker = make(slots, cfg.Parallel)
	e := promql.NewEngine(opts)
	if queryLog != nil {
		e.SetQueryLogger(queryLog)
	}
	return querylimit.Engine(e, cfg.Timeout)
}

// engineOpts returns the options of an engine.
func (l limits) engineOpts(samples int, timeout time.Duration, read parser.Parser, log *slog.Logger) promql.EngineOpts {
	return promql.EngineOpts{
		Logger: log, MaxSamples: samples, Timeout: timeout, LookbackDelta: l.Lookback,
		EnableAtModifier: true, EnableNegativeOffset: true, Parser: read,
		NoStepSubqueryIntervalFn: func(int64) int64 { return querylimit.DefaultStep.Milliseconds() },
	}
}

// slots limits the queries that run at once. It implements promql.QueryTracker.
type slots chan struct{}

func (s slots) GetMaxConcurrent() int { return cap(s) }
func (s slots) Delete(int)            { <-s }
func (s slots) Close() error          { return nil }
func (s slots) Insert(ctx context.Context, _ string) (int, error) {
	select {
	case s <- struct{}{}:
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// tieredEngine runs each query as a small one, and again as a large one if it exceeds the
// limits of small queries.
type tieredEngine struct {
	api          *API
	small, large promql.QueryEngine
}

func (e *tieredEngine) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, at time.Time) (promql.Query, error) {
	return e.newQuery(func(engine promql.QueryEngine) (promql.Query, error) {
		return engine.NewInstantQuery(ctx, q, opts, text, at)
	})
}

func (e *tieredEngine) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	return e.newQuery(func(engine promql.QueryEngine) (promql.Query, error) {
		return engine.NewRangeQuery(ctx, q, opts, text, start, end, step)
	})
}

func (e *tieredEngine) newQuery(parse func(promql.QueryEngine) (promql.Query, error)) (promql.Query, error) {
	q, err := parse(e.small)
	if err != nil {
		return nil, err
	}
	return &tieredQuery{q, e, parse}, nil
}

// A tieredQuery is a query of a tieredEngine. Query is the small or large attempt.
type tieredQuery struct {
	promql.Query
	engine *tieredEngine
	parse  func(promql.QueryEngine) (promql.Query, error)
}

// Exec runs the query.
func (q *tieredQuery) Exec(ctx context.Context) *promql.Result {
	t := admissionOf(ctx)
	if t == nil {
		t = &admission{api: q.engine.api, large: true}
	}
	r := q.run(ctx, t)
	if !t.large && needsLarge(ctx, r.Err) {
		if r.Err = t.upgrade(ctx); r.Err == nil {
			r = q.runLarge(ctx, t)
		}
	}
	if r.Err == nil {
		r.Err = q.engine.checkAnswer(r.Value, t.limit)
	}
	r.Err = q.engine.explain(r.Err)
	q.engine.api.queryLog.query(t, q.Query, r.Err)
	return r
}

// runLarge runs the query as a large one.
func (q *tieredQuery) runLarge(ctx context.Context, t *admission) *promql.Result {
	next, err := q.parse(q.engine.large)
	if err != nil {
		return &promql.Result{Err: err}
	}
	q.Close()
	q.Query = next
	return q.run(ctx, t)
}

// run runs the query once, under the memory watch.
func (q *tieredQuery) run(ctx context.Context, t *admission) *promql.Result {
	ctx, end := q.engine.api.memory.begin(ctx, t)
	defer end()
	r := q.Query.Exec(ctx)
	if r.Err != nil && errors.Is(context.Cause(ctx), errMemory) {
		r.Err = errMemory
	}
	return r
}

// needsLarge reports whether a query failed because it exceeds the limits of small queries.
func needsLarge(ctx context.Context, err error) bool {
	var many promql.ErrTooManySamples
	var slow promql.ErrQueryTimeout
	return err != nil && ctx.Err() == nil && (errors.As(err, &many) || errors.As(err, &slow) || errors.Is(err, errLarge) ||
		errors.Is(err, errMemory) || errors.Is(err, context.DeadlineExceeded))
}

// checkAnswer rejects a value that is too large to send; a limit other than 0 counts only
// the first series.
func (e *tieredEngine) checkAnswer(v parser.Value, limit int) error {
	most := e.api.limits.answerBytes
	var bytes int64
	var series, points int
	add := func(labels uint64, n int) {
		if limit == 0 || series < limit {
			series++
			points += n
			bytes += int64(labels) + int64(n)*pointBytes
		}
	}
	switch v := v.(type) {
	case promql.Matrix:
		for i := range v {
			n := len(v[i].Floats)
			for _, h := range v[i].Histograms {
				n += histogramPoints(h.H)
			}
			add(v[i].Metric.ByteSize(), n)
		}
	case promql.Vector:
		for i := range v {
			n := 1
			if v[i].H != nil {
				n = histogramPoints(v[i].H)
			}
			add(v[i].Metric.ByteSize(), n)
		}
	}
	if bytes <= most {
		return nil
	}
	return limitError(fmt.Sprintf("the answer has %d points in %d series, about %s; at most %s are sent", points, series, unit.Bytes(float64(bytes)), unit.Bytes(float64(most))),
		"use a larger step, or fewer series with topk, sum or a narrower selector", e.api.limits.Memory)
}

// histogramPoints returns the number of points as which a histogram counts in an answer: it has its
// buckets there, each with its bounds in about 50 bytes.
func histogramPoints(h *histogram.FloatHistogram) int {
	return 8 + 2*(len(h.PositiveBuckets)+len(h.NegativeBuckets))
}

// explain adds the limit and the remedy to an error of the engine.
func (e *tieredEngine) explain(err error) error {
	var many promql.ErrTooManySamples
	var slow promql.ErrQueryTimeout
	var explained timeoutError
	l := e.api.limits
	switch {
	case err == nil, errors.As(err, &explained):
	case errors.Is(err, errMemory):
		return limitError("the running queries took too much memory", "use a larger step, a shorter range or fewer series, or retry later", l.Memory)
	case errors.As(err, &many):
		return limitError(fmt.Sprintf("%v: at most %d in memory at once", many, l.large.samples), "use a larger step, a shorter range or fewer series", l.Memory)
	case errors.As(err, &slow), errors.Is(err, context.DeadlineExceeded):
		return timeoutError{fmt.Sprintf("the query timed out: the limit is %v (mete server --query-timeout) or the parameter timeout: use a larger step, a shorter range or fewer series", l.Timeout)}
	}
	return err
}
