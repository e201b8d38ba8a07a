// Package subquery bounds the steps of the subqueries of a PromQL expression.
//
// Prometheus's evaluator allocates 16 bytes for each step of a subquery before it
// evaluates anything, no limit on samples counts them, and no timeout stops that:
// max_over_time(x[100y:1ms]) ends the process. So an expression is judged before.
// absent_over_time has the same cost for each step that it is evaluated at, also
// uncounted, so that each one in a subquery counts as the subquery does.
package subquery

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

const (
	// MaxSteps is how many steps all subqueries of an expression may have together.
	MaxSteps = 1_000_000
	// DefaultStep is the step of a subquery that names none.
	DefaultStep = time.Minute
)

// Parser returns p, refusing each expression whose subqueries have more than [MaxSteps]
// steps where it is evaluated at one instant.
func Parser(p parser.Parser) parser.Parser { return limitedParser{p} }

type limitedParser struct{ parser.Parser }

func (b limitedParser) ParseExpr(text string) (parser.Expr, error) {
	e, err := b.Parser.ParseExpr(text)
	if err == nil {
		err = check(text, e, 0)
	}
	return e, err
}

// Engine returns e, refusing each query whose subqueries have more than [MaxSteps] steps.
// The step of a subquery that names none must be [DefaultStep] in e.
func Engine(e promql.QueryEngine) promql.QueryEngine { return limitedEngine{e} }

type limitedEngine struct{ next promql.QueryEngine }

func (e limitedEngine) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, at time.Time) (promql.Query, error) {
	return checkQuery(e.next.NewInstantQuery(ctx, q, opts, text, at))
}

func (e limitedEngine) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	return checkQuery(e.next.NewRangeQuery(ctx, q, opts, text, start, end, step))
}

// checkQuery passes a query on that may be evaluated. Its statement is judged, not its text:
// there, durations that were expressions have values.
func checkQuery(q promql.Query, err error) (promql.Query, error) {
	if err != nil {
		return nil, err
	}
	if s, ok := q.Statement().(*parser.EvalStmt); ok {
		span := s.End.UnixMilli() - s.Start.UnixMilli()
		if span < 0 { // it overflows, as the end is never before the start
			span = math.MaxInt64
		}
		if err := check(q.String(), s.Expr, span); err != nil {
			q.Close()
			return nil, err
		}
	}
	return q, nil
}

// check reports the subquery with which those of e have more than [MaxSteps] steps, where e
// is evaluated over span milliseconds. The error names the place in text, which e was
// parsed from.
func check(text string, e parser.Expr, span int64) error {
	_, err := count(text, e, span, 0, 0)
	return err
}

// count adds the steps of the subqueries in n to those that were counted before. step is
// that of the subquery around n, in milliseconds, or 0.
func count(text string, n parser.Node, span, step, before int64) (int64, error) {
	all := before
	switch n := n.(type) {
	case *parser.StepInvariantExpr:
		span = 0 // it is evaluated at the start only
	case *parser.SubqueryExpr:
		step = DefaultStep.Milliseconds()
		if n.Step != 0 {
			step = n.Step.Milliseconds()
		}
		if step <= 0 {
			return 0, refusal(text, n, "subquery", fmt.Sprintf("has a step of %v: the least is 1ms", n.Step))
		}
		// The range begins before the span, and what is inside is evaluated over both as
		// one. An offset and @ move it, and do not change its length.
		span = addCapped(span, n.Range.Milliseconds())
		own := addCapped(span/step, 1)
		if all = addCapped(all, own); all > MaxSteps {
			over := ""
			if before > 0 {
				over = fmt.Sprintf(", and those before it %d", before)
			}
			return 0, refusal(text, n, "subquery", fmt.Sprintf("has %d steps of %v, over %s%s: the subqueries of an expression may have %d steps in all; take a larger step or a shorter range",
				own, time.Duration(step)*time.Millisecond, formatMillis(span), over, MaxSteps))
		}
	}
	if call, ok := n.(*parser.Call); ok && step > 0 && call.Func.Name == "absent_over_time" {
		if all = addCapped(all, addCapped(span/step, 1)); all > MaxSteps {
			return 0, refusal(text, call, "function", fmt.Sprintf("is evaluated at %d steps in a subquery, and what is before it at %d: an expression may have %d in all; take a larger step or a shorter range",
				addCapped(span/step, 1), before, MaxSteps))
		}
	}
	for c := range parser.ChildrenIter(n) {
		var err error
		if all, err = count(text, c, span, step, all); err != nil {
			return 0, err
		}
	}
	return all, nil
}

// addCapped adds what is not negative; a sum that is too large is the largest number.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// formatMillis writes milliseconds, which may be more than a time.Duration holds.
func formatMillis(ms int64) string {
	if day := 24 * time.Hour.Milliseconds(); ms >= 2*day {
		return fmt.Sprintf("%.4g days", float64(ms)/float64(day))
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// maxShown is how many bytes of a subquery an error shows.
const maxShown = 200

func refusal(text string, n parser.Expr, what, why string) error {
	at := n.PositionRange()
	own := text[max(0, min(int(at.Start), len(text))):max(0, min(int(at.End), len(text)))]
	if len(own) > maxShown {
		own = own[:maxShown] + "..."
	}
	return &parser.ParseErr{PositionRange: at, Query: text, Err: fmt.Errorf("%s %s %s", what, own, why)}
}
