package apispec

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
)

// EachPeriod answers a query for each period as a ledger does: first for the whole range.
func EachPeriod(ctx context.Context, q query.Query, every query.Period, usage func(context.Context, query.Query) (*query.Answer, error), f func(*query.Answer) error) error {
	from, to := q.From, q.To
	a, err := usage(ctx, q)
	for at := from; err == nil; at = q.To {
		if err = f(a); err != nil || !at.Before(to) {
			return err
		}
		q.From, q.To = at, at.Truncate(time.Duration(every)).Add(time.Duration(every))
		if q.To.After(to) {
			q.To = to
		}
		a, err = usage(ctx, q)
	}
	return err
}
