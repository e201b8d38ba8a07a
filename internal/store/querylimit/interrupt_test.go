package querylimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"mete.dev/mete/internal/store/querylimit"
)

// onCall runs hook before each call of function name, with the number of the call.
func onCall(t *testing.T, name string, hook func(n int)) {
	limitedEngine() // the first engine makes the functions interruptible
	call, n := promql.FunctionCalls[name], 0
	promql.FunctionCalls[name] = func(s []promql.Vector, m promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper) (promql.Vector, annotations.Annotations) {
		n++
		hook(n)
		return call(s, m, args, enh)
	}
	t.Cleanup(func() { promql.FunctionCalls[name] = call })
}

// A query ends within one series: at the step after its timeout or the end of its context.
// Each of these has 3601 steps, in the range query or in a subquery.
func TestInterrupt(t *testing.T) {
	for _, text := range []string{
		`quantile_over_time(0.5, vector(1)[1d:1m])`,
		`1 + sum(-(quantile_over_time(scalar(vector(time())), (vector(1))[1d:])))`,
		`quantile_over_time(scalar(vector(time())), vector(1)[1d:1m] @ 1000)`,
		`max_over_time(quantile_over_time(0.5, vector(1)[1m:1s])[1h:1s] @ 1000)`,
		`quantile_over_time(0.5, m[1h])`,
	} {
		for name, c := range map[string]struct {
			at   func(cancel func())
			want func(error) bool
		}{
			"timeout":  {func(func()) { time.Sleep(2 * time.Hour) }, func(err error) bool { var slow promql.ErrQueryTimeout; return errors.As(err, &slow) }},
			"canceled": {func(cancel func()) { cancel() }, func(err error) bool { var c promql.ErrQueryCanceled; return errors.As(err, &c) }},
		} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				last := 0
				onCall(t, "quantile_over_time", func(n int) {
					if last = n; n == 3 {
						c.at(cancel)
					}
				})
				q, err := limitedEngine().NewRangeQuery(ctx, oneSeries, nil, text, time.Unix(1e6, 0), time.Unix(1e6+3600, 0), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				defer func() {
					if n := querylimit.Running(); n != 0 {
						t.Errorf("%s, %s: %d calls are still known", text, name, n)
					}
				}()
				if r := q.Exec(ctx); !c.want(r.Err) || last != 3 {
					t.Errorf("%s, %s: %v after %d calls; want an error and no call after the third", text, name, r.Err, last)
				}
			})
		}
	}
}

// oneSeries has one series, m, with a sample at each of 2000 milliseconds around the start.
var oneSeries = storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return oneQuerier{storage.NoopQuerier()}, nil })

type oneQuerier struct{ storage.Querier }

func (oneQuerier) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	m := storage.NewListSeries(labels.FromStrings("__name__", "m"), chunks.GenerateSamples(1e9-1000, 2000))
	return &oneSet{SeriesSet: storage.TestSeriesSet(m)}
}

// A oneSet ends after the first series.
type oneSet struct {
	storage.SeriesSet
	ended bool
}

func (s *oneSet) Next() bool {
	next := !s.ended
	s.ended = true
	return next
}
