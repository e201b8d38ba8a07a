package querylimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// running has the context.Context of each call in each running query. The key is the address
// of the first argument, which is all that the evaluator tells a function about its query.
var running sync.Map

// The evaluator checks its context between series, not between the steps of one. This is too
// rare where a function reads a long range at each of many steps: quantile_over_time over
// vector(1)[1d:100ms] sorts 864,000 points per step. So each call checks the context first.
var interruptCalls = sync.OnceFunc(func() {
	for name, call := range promql.FunctionCalls {
		if f := parser.Functions[name]; call != nil && f != nil && slices.Contains(f.ArgTypes, parser.ValueTypeMatrix) {
			promql.FunctionCalls[name] = interruptible(call)
		}
	}
})

// interruptible returns call with a check of the query's context before it. The evaluator
// takes errors of functions as panics.
func interruptible(call promql.FunctionCall) promql.FunctionCall {
	return func(scalars []promql.Vector, series promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper) (promql.Vector, annotations.Annotations) {
		if ctx, ok := running.Load(&args[0]); ok {
			switch err := ctx.(context.Context).Err(); {
			case errors.Is(err, context.DeadlineExceeded):
				panic(promql.ErrQueryTimeout("expression evaluation"))
			case err != nil:
				panic(promql.ErrQueryCanceled("expression evaluation"))
			}
		}
		return call(scalars, series, args, enh)
	}
}

// An interruptibleQuery ends soon after its context or timeout, also within one series.
type interruptibleQuery struct {
	promql.Query
	timeout time.Duration // of the engine
}

// Exec runs the query.
func (q interruptibleQuery) Exec(ctx context.Context) *promql.Result {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	if s, ok := q.Statement().(*parser.EvalStmt); ok {
		for _, args := range calls(s.Expr, nil) {
			running.Store(args, ctx)
			defer running.Delete(args)
		}
	}
	return q.Query.Exec(ctx)
}

// calls appends the address of the first argument of each call with a range vector in n.
func calls(n parser.Node, list []*parser.Expr) []*parser.Expr {
	if c, ok := n.(*parser.Call); ok && slices.Contains(c.Func.ArgTypes, parser.ValueTypeMatrix) {
		list = append(list, &c.Args[0])
	}
	for child := range parser.ChildrenIter(n) {
		list = calls(child, list)
	}
	return list
}
