// Package querylimit limits the steps of the subqueries of a PromQL expression, and ends
// functions over long ranges at the timeout of their query.
//
// Prometheus's evaluator allocates 16 bytes for each step of a subquery before it evaluates
// anything. No limit of samples counts them, and no timeout stops the allocation:
// max_over_time(x[100y:1ms]) exhausts the memory of the process. This package therefore
// checks expressions before their evaluation. absent_over_time has the same uncounted cost
// for each step at which it is evaluated, so each one in a subquery counts like the subquery.
package querylimit

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
	// MaxSteps limits the steps of all subqueries of an expression together.
	MaxSteps = 1_000_000
	// DefaultStep is the step of a subquery without an explicit one.
	DefaultStep = time.Minute
)

// Parser wraps p and rejects expressions whose subqueries have more than [MaxSteps] steps in
// an instant query.
func Parser(p parser.Parser) parser.Parser { return limitedParser{p} }

type limitedParser struct{ parser.Parser }

func (p limitedParser) ParseExpr(text string) (parser.Expr, error) {
	e, err := p.Parser.ParseExpr(text)
	if err == nil {
		err = check(text, e, 0)
	}
	return e, err
}

// Engine wraps e and rejects queries whose subqueries have more than [MaxSteps] steps. Its
// queries end soon after their context or timeout, the timeout of e, with a
// [promql.ErrQueryCanceled] or [promql.ErrQueryTimeout]. The default step of subqueries in e
// must be [DefaultStep].
func Engine(e promql.QueryEngine, timeout time.Duration) promql.QueryEngine {
	interruptCalls()
	return limitedEngine{e, timeout}
}

type limitedEngine struct {
	next    promql.QueryEngine
	timeout time.Duration
}

func (e limitedEngine) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, at time.Time) (promql.Query, error) {
	next, err := e.next.NewInstantQuery(ctx, q, opts, text, at)
	return e.checkQuery(next, err)
}

func (e limitedEngine) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	next, err := e.next.NewRangeQuery(ctx, q, opts, text, start, end, step)
	return e.checkQuery(next, err)
}

// checkQuery returns q or an error if it has too many steps. It checks the statement, not the
// text, because the statement has the values of durations that are expressions.
func (e limitedEngine) checkQuery(q promql.Query, err error) (promql.Query, error) {
	if err != nil {
		return nil, err
	}
	if s, ok := q.Statement().(*parser.EvalStmt); ok {
		span := s.End.UnixMilli() - s.Start.UnixMilli()
		if span < 0 { // overflow, because the end is never before the start
			span = math.MaxInt64
		}
		if err := check(q.String(), s.Expr, span); err != nil {
			q.Close()
			return nil, err
		}
	}
	return interruptibleQuery{q, e.timeout}, nil
}

// check returns an error if the subqueries of e have more than [MaxSteps] steps when e is
// evaluated over span milliseconds. The error has the position in text, the source of e, of
// the subquery that exceeds the limit.
func check(text string, e parser.Expr, span int64) error {
	_, err := count(text, e, span, 0, 0)
	return err
}

// count returns before plus the steps of the subqueries in n. step is the step of the
// enclosing subquery in milliseconds, or 0.
func count(text string, n parser.Node, span, step, before int64) (int64, error) {
	all := before
	switch n := n.(type) {
	case *parser.StepInvariantExpr:
		span = 0 // evaluated only once, at the start
	case *parser.SubqueryExpr:
		step = DefaultStep.Milliseconds()
		if n.Step != 0 {
			step = n.Step.Milliseconds()
		}
		if step <= 0 {
			return all, refusal(text, n, "subquery", fmt.Sprintf("has a step of %v: the minimum is 1ms", n.Step))
		}
		// The inner expression is evaluated over the span extended by the range. An offset
		// and @ move this time and do not change its length.
		span = addCapped(span, n.Range.Milliseconds())
		own := addCapped(span/step, 1)
		if all = addCapped(all, own); all > MaxSteps {
			over := ""
			if before > 0 {
				over = fmt.Sprintf(", and the previous ones have %d", before)
			}
			return all, refusal(text, n, "subquery", fmt.Sprintf("has %d steps of %v, over %s%s: the subqueries of an expression may have %d steps in all; use a larger step or a shorter range",
				own, time.Duration(step)*time.Millisecond, formatMillis(span), over, MaxSteps))
		}
	}
	if call, ok := n.(*parser.Call); ok && step > 0 && call.Func.Name == "absent_over_time" {
		if all = addCapped(all, addCapped(span/step, 1)); all > MaxSteps {
			return all, refusal(text, call, "function", fmt.Sprintf("is evaluated at %d steps in a subquery, and the parts before it have %d: an expression may have %d in all; use a larger step or a shorter range",
				addCapped(span/step, 1), before, MaxSteps))
		}
	}
	for c := range parser.ChildrenIter(n) {
		var err error
		if all, err = count(text, c, span, step, all); err != nil {
			return all, err
		}
	}
	return all, nil
}

// addCapped adds two numbers that are not negative, and returns the maximum on overflow.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// formatMillis formats milliseconds, which may exceed the range of a time.Duration.
func formatMillis(ms int64) string {
	if day := 24 * time.Hour.Milliseconds(); ms >= 2*day {
		return fmt.Sprintf("%.4g days", float64(ms)/float64(day))
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// maxShown limits the bytes of a subquery in an error.
const maxShown = 200

func refusal(text string, n parser.Expr, what, why string) error {
	at := n.PositionRange()
	own := text[min(int(at.Start), len(text)):min(int(at.End), len(text))]
	if len(own) > maxShown {
		own = own[:maxShown] + "..."
	}
	return &parser.ParseErr{PositionRange: at, Query: text, Err: fmt.Errorf("%s %s %s", what, own, why)}
}
