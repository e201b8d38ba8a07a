package querylimit_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/store/querylimit"
)

// experimental is a parser with all experimental features.
var experimental = parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true})

func limitedEngine() promql.QueryEngine { return querylimit.Engine(plainEngine(), time.Hour) }

func plainEngine() promql.QueryEngine {
	return promql.NewEngine(promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: 5e6, Timeout: time.Hour, EnableAtModifier: true, EnableNegativeOffset: true, Parser: experimental,
		NoStepSubqueryIntervalFn: func(int64) int64 { return querylimit.DefaultStep.Milliseconds() },
	})
}

var empty = storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil })

// The engine rejects queries with too many steps before their evaluation. The error names
// the subquery, its steps, the limit and the remedy.
func TestEngine(t *testing.T) {
	const start = 1e9
	for _, c := range []struct {
		query      string
		span, step time.Duration // of a range query; 0 is an instant query
		want       string        // part of the error; "" is none
	}{
		{`max_over_time(nosuch[30d:5m])`, 0, 0, ""},
		{`max_over_time(nosuch[1h:])`, 0, 0, ""},
		{`max_over_time(nosuch[1y:1m])`, 0, 0, ""},
		{`nosuch[100y]`, 0, 0, ""},
		{`max_over_time(nosuch[999999s:1s])`, 0, 0, ""},
		{`max_over_time(nosuch[1000000s:1s])`, 0, 0, "1:15: parse error: subquery nosuch[1000000s:1s] has 1000001 steps of 1s, over 11.57 days: the subqueries of an expression may have 1000000 steps in all; use a larger step or a shorter range"},
		{`max_over_time(nosuch[100y:1ms])`, 0, 0, "has 3153600000001 steps of 1ms"},
		{`max_over_time(vector(1)[30d:1ms])`, 0, 0, "subquery vector(1)[30d:1ms] has 2592000001 steps"},
		{`max_over_time(nosuch[1d:1ms])`, 0, 0, "has 86400001 steps of 1ms, over 24h0m0s"},
		{`nosuch[1d:1ms]`, 0, 0, "has 86400001 steps"},
		{`nosuch[292y:1ms] offset -292y`, 0, 0, "has 9208512000001 steps"},
		{`max_over_time(nosuch[3y:])`, 0, 0, "has 1576801 steps of 1m0s"},
		{`max_over_time(nosuch[2d:1ms])`, 0, 0, "has 172800001 steps of 1ms, over 2 days: "},
		// The position in the expression makes no difference.
		{`1 + sum by (a) (-(abs(max_over_time(nosuch[1d:1ms]))))`, 0, 0, "86400001 steps"},
		{`topk(scalar(max_over_time(nosuch[1d:1ms])), x)`, 0, 0, "86400001 steps"},
		{`x or x unless max_over_time(nosuch[1d:1ms])`, 0, 0, "1:29: "},
		{`max_over_time(nosuch[1d:1ms] offset 1w)`, 0, 0, "86400001 steps"},
		{`max_over_time(nosuch[1d:1ms] @ 1000)`, 0, 0, "86400001 steps"},
		{`max_over_time(nosuch[1d:1ms] @ end() offset -1y)`, 0, 0, "86400001 steps"},
		// A nested subquery is evaluated over the range of both.
		{`max_over_time(max_over_time(nosuch[1h:1s])[1d:1m])`, 0, 0, ""},
		{`max_over_time(max_over_time(nosuch[10m:100ms])[1d:1m])`, 0, 0, ""},
		{`max_over_time(max_over_time(nosuch[10m:50ms])[1d:1m])`, 0, 0, "subquery nosuch[10m:50ms] has 1740001 steps of 50ms, over 24h10m0s, and the previous ones have 1441: "},
		{`max_over_time(max_over_time(nosuch[10m:1s])[30d:1h])`, 0, 0, "has 2592601 steps of 1s"},
		{`max_over_time(max_over_time(max_over_time(nosuch[1s:1ms])[1s:1s])[1h:1h])`, 0, 0, "has 3602001 steps of 1ms"},
		{`max_over_time(max_over_time(nosuch[292y:292y])[292y:146y])`, 0, 0, ""},
		{strings.Repeat("max_over_time(", 300) + "nosuch" + strings.Repeat("[290y:290y])", 300), 0, 0, ""},
		{strings.Repeat("max_over_time(", 1200) + "nosuch[1ms:1ms])" + strings.Repeat("[290y:290y])", 1199), 0, 0, "has 10965382560000002 steps of 1ms, over 1.269e+08 days"},
		// The steps of independent subqueries add up.
		{`max_over_time(a[9d:1s]) + max_over_time(b[2d:1s])`, 0, 0, ""},
		{`max_over_time(a[9d:1s]) + max_over_time(b[3d:1s])`, 0, 0, "subquery b[3d:1s] has 259201 steps of 1s, over 3 days, and the previous ones have 777601: "},
		{`max_over_time(a[1s:1m]) + max_over_time(b[1d:1ms])`, 0, 0, ", and the previous ones have 1: "},
		// A range query adds its own range, except to parts that are evaluated once.
		{`max_over_time(nosuch[1h:1s])`, 10 * 24 * time.Hour, time.Hour, ""},
		{`max_over_time(nosuch[1h:1s])`, 12 * 24 * time.Hour, time.Hour, "has 1040401 steps of 1s, over 12.04 days"},
		{`max_over_time(nosuch[1h:1s] @ end())`, 30 * 24 * time.Hour, time.Hour, ""},
		{`max_over_time(nosuch[30d:1s] @ end())`, 30 * 24 * time.Hour, time.Hour, "has 2592001 steps"},
		{`max_over_time((nosuch @ 1)[1h:1s])`, 12 * 24 * time.Hour, time.Hour, "has 1040401 steps"},
		{`max_over_time(nosuch[1s:1s])`, 1 << 62, time.Hour, "steps of 1s"},
		// Each absent_over_time in a subquery counts the steps of the subquery again.
		{`count_over_time(absent_over_time(a[1m])[1h:1s])`, 0, 0, ""},
		{`count_over_time((absent_over_time(a[1m]) or absent_over_time(b[1m]))[16m:2ms])`, 0, 0, "function absent_over_time(b[1m]) is evaluated at 480001 steps in a subquery, and the parts before it have 960002: "},
		{`count_over_time((` + strings.Repeat("absent_over_time(a[1m]) or (", 60) + "b" + strings.Repeat(")", 60) + `)[5m:5ms])`, 0, 0, "1:438: parse error: function absent_over_time(a[1m]) is evaluated at 60001 steps"},
		{strings.Repeat("absent_over_time(a[1m]) or (", 60) + "b" + strings.Repeat(")", 60), 0, 0, ""},
		{`count_over_time((absent_over_time(a[1m] @ 1000))[16m:1ms])`, 0, 0, ""},
		{`count_over_time(absent_over_time(a[1m])[499999s:1s])`, 0, 0, ""},
		{`count_over_time(absent_over_time(a[1m])[500000s:1s])`, 0, 0, "is evaluated at 500001 steps"},
		{`count_over_time(absent_over_time(a[1m])[16m:1ms])`, 0, 0, "is evaluated at 960001 steps"},
		{`absent_over_time(a[1m])`, 12 * 24 * time.Hour, time.Hour, ""},
		// Durations may be expressions.
		{`max_over_time(nosuch[step()*1000:1ms])`, time.Hour, time.Minute, "has 63600001 steps of 1ms"},
		{`max_over_time(nosuch[range()*1000:1s])`, time.Hour, time.Minute, "has 3603601 steps of 1s"},
		{`max_over_time(nosuch[1d:step()/60000])`, time.Hour, time.Minute, "has 90000001 steps of 1ms"},
		{`max_over_time(nosuch[1h+1h:1m])`, time.Hour, time.Minute, ""},
	} {
		var q promql.Query
		var err error
		at := time.Unix(start, 0)
		if c.span == 0 {
			q, err = limitedEngine().NewInstantQuery(t.Context(), empty, nil, c.query, at)
		} else {
			q, err = limitedEngine().NewRangeQuery(t.Context(), empty, nil, c.query, at, at.Add(c.span), c.step)
		}
		switch name := c.query[:min(len(c.query), 80)]; {
		case c.want == "" && err != nil:
			t.Errorf("%s over %v: %v", name, c.span, err)
		case c.want == "":
			q.Close()
		case err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000:
			t.Errorf("%s over %v: %.1000v; want %q", name, c.span, err, c.want)
		}
	}
}

// An engine's error is returned. A rejected query is closed.
func TestRejected(t *testing.T) {
	if q, err := limitedEngine().NewInstantQuery(t.Context(), empty, nil, "sum(", time.Unix(1e9, 0)); err == nil || q != nil {
		t.Errorf("%v, %v", q, err)
	}
	var inner closingEngine
	e := querylimit.Engine(&inner, time.Hour)
	for text, closed := range map[string]int{`max_over_time(x[1d:1m])`: 0, `max_over_time(x[1d:1ms])`: 1} {
		inner.closed = 0
		q, err := e.NewInstantQuery(t.Context(), empty, nil, text, time.Unix(1e9, 0))
		if inner.closed != closed || (err == nil) != (closed == 0) || (q != nil) != (closed == 0) {
			t.Errorf("%s: %v, %v, closed %d times", text, q, err, inner.closed)
		}
	}
	// The message has the first 200 bytes of the subquery.
	for n, cut := range map[int]bool{200: false, 201: true} {
		name := strings.Repeat("x", n-len("[1d:1ms]"))
		_, err := limitedEngine().NewInstantQuery(t.Context(), empty, nil, name+"[1d:1ms]", time.Unix(1e9, 0))
		if err == nil || strings.Contains(err.Error(), "... has") != cut {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// A closingEngine counts the queries that are closed.
type closingEngine struct {
	promql.QueryEngine
	closed int
}

func (e *closingEngine) NewInstantQuery(ctx context.Context, s storage.Queryable, o promql.QueryOpts, text string, at time.Time) (promql.Query, error) {
	q, err := plainEngine().NewInstantQuery(ctx, s, o, text, at)
	return closingQuery{q, e}, err
}

type closingQuery struct {
	promql.Query
	e *closingEngine
}

func (q closingQuery) Close() {
	q.e.closed++
	q.Query.Close()
}

// The longest possible range does not overflow.
func TestMaxRange(t *testing.T) {
	_, err := limitedEngine().NewRangeQuery(t.Context(), empty, nil, `max_over_time(x[1h:1h])`, time.UnixMilli(-1<<63), time.UnixMilli(1<<63-1), 1<<62)
	if err == nil || !strings.Contains(err.Error(), "steps of 1h0m0s") {
		t.Error(err)
	}
}

// The package counts exactly the evaluated steps.
func TestCount(t *testing.T) {
	for text, want := range map[string]float64{
		`count_over_time(vector(1)[999h:5m])`:                     999 * 12,
		`count_over_time(vector(1)[1000000s:1s])`:                 0,
		`count_over_time(vector(1)[999999s:1s])`:                  999999,
		`max_over_time(count_over_time(vector(1)[2d:1m])[1h:1m])`: 2880,
	} {
		q, err := limitedEngine().NewInstantQuery(t.Context(), empty, nil, text, time.Unix(1e9, 0))
		if err != nil {
			if want != 0 {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		v, err := q.Exec(t.Context()).Vector()
		if err != nil || len(v) != 1 || v[0].F != want {
			t.Errorf("%s: %v, %v; want %v", text, v, err, want)
		}
		q.Close()
	}
}

// Parser rejects what Engine rejects in an instant query, and passes on everything else.
func TestParser(t *testing.T) {
	p := querylimit.Parser(experimental)
	if _, err := p.ParseExpr(`sum(`); err == nil || !strings.Contains(err.Error(), "1:5") {
		t.Error(err)
	}
	if _, err := p.ParseExpr(`max_over_time(x[30d:5m])`); err != nil {
		t.Error(err)
	}
	if _, err := p.ParseExpr("1 +\n max_over_time(x[1d:1ms])"); err == nil || !strings.HasPrefix(err.Error(), "2:16: parse error: subquery x[1d:1ms] has 86400001 steps") {
		t.Error(err)
	}
	if _, err := p.ParseMetricSelector(`{a="b"}`); err != nil {
		t.Error(err)
	}
	long := `max_over_time({a="` + strings.Repeat("x", 1000) + `"}[1d:1ms])`
	if _, err := p.ParseExpr(long); err == nil || len(err.Error()) > 500 {
		t.Errorf("%v", err)
	}
	for _, step := range []string{"0", "-1s", "0s", "0.0001"} {
		e, err := p.ParseExpr(`max_over_time(x[1d:` + step + `])`)
		if err == nil {
			t.Errorf("a step of %s: %v", step, e)
		}
	}
}
