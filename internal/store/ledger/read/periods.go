package read

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// EachPeriod answers a query as [Reader.Usage] does and calls f with the answer, then with the answers of
// the UTC hours or days of its range, in order; the first and the last are cut at the ends of the range. All
// are of one snapshot, so the periods sum to the range. Groups that q.Top leaves out of the range are not
// in a period either, except those that are always kept. f may change an answer: groups that it removes
// from the first are not in those of the periods if q.Top is set. Its error ends the query. Hours of a time
// of which only days are kept are fault.ErrInvalid.
func (rd *Reader) EachPeriod(ctx context.Context, q query.Query, every query.Period, f func(*query.Answer) error) error {
	err := rd.db.View(ctx, func(v *db.View) error {
		from, to := queryRange(v, q.From, q.To)
		if every == query.Hourly && from < v.HourFloor {
			return fault.WithHint(fmt.Errorf("hours before %s are not kept: %w", schema.FormatMinute(v.HourFloor), fault.ErrInvalid), "ask for days, or for a later range")
		}
		whole, err := rd.usageIn(v, q, from, to)
		if err != nil {
			return err
		}
		if err := f(whole); err != nil {
			return err
		}
		of := q
		if q.Top != nil {
			kept := map[string]bool{}
			for i := range whole.Groups {
				kept[strings.Join(whole.Groups[i].Keys, "\x00")] = true
			}
			of.Top = &query.Top{Rank: q.Top.Rank, AlwaysKept: func(keys []string) bool {
				return kept[strings.Join(keys, "\x00")] || q.Top.AlwaysKept(keys)
			}}
		}
		width := int64(time.Duration(every) / time.Minute)
		for at := from; at < to; {
			end := min(to, at-at%width+width)
			a, err := rd.usageIn(v, of, at, end)
			if err != nil {
				return err
			}
			if err := f(a); err != nil {
				return err
			}
			at = end
		}
		return nil
	})
	return db.Wrap(err, "usage by periods")
}
