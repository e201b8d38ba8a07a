package ledger

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"mete.dev/mete/internal/x/failpoint"
)

// Fold sums the minutes of hours that are over into hours, those into days, and
// days into groups.
func (l *Ledger) Fold(ctx context.Context, now time.Time) error {
	for err := range l.Folding(ctx, now) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Folding folds as Fold does, a slice at a time, and stops at an error. A slice
// is a transaction that holds the writer for a moment only, and that says how
// far folding came. Who waits to write is let in after each, as the writer is
// had in turn. What is booked between two slices is right, and folding that was
// cut off goes on from there.
func (l *Ledger) Folding(ctx context.Context, now time.Time) iter.Seq[error] {
	closed := now.Add(-l.cfg.Grace).Unix() / 60
	f := &folding{l: l, limit: closed - closed%hourMinutes, begun: map[int64]bool{}}
	return func(yield func(error) bool) {
		for {
			s, err := f.next(ctx)
			if err == nil && s == nil {
				return
			}
			if err == nil {
				err = f.write(ctx, s)
			}
			if !yield(about(err, "folding")) || err != nil {
				return
			}
		}
	}
}

// A folding is one call of Folding.
type folding struct {
	l     *Ledger
	limit int64 // hours before it are over
	// begun are the days whose groups it began to sum. Where rows come for one
	// of them meanwhile it is left for the next time.
	begun map[int64]bool
}

// A slice is what is folded in one transaction: a range of keys of an hour or of
// a day.
type slice struct {
	into level  // hours or days
	at   int64  // the first minute of the hour or day
	keys *shape // of which tables; nil is the groups of a day
	// first and end are the keys: [first, end).
	first, end int64
	finer      []any // the minutes of the rows that are summed
	rows       int64 // of minutes; about, as more may have come
	skip       bool  // there is nothing to fold before at, and this is all that is to be said
}

// last is the end of a slice that is the last one.
const last = math.MaxInt64

const (
	firstSlice = 1 << 14 // rows
	leastSlice = 1 << 10

	// hold is how long a slice is to hold the writer.
	hold = 150 * time.Millisecond
)

// next finds what is to be folded next; nil is nothing. It reads only, and so
// keeps nobody from booking.
func (f *folding) next(ctx context.Context) (s *slice, err error) {
	err = f.l.view(ctx, func(v *view) error {
		for _, find := range []func(*view) (*slice, error){f.hour, f.day, f.groups} {
			if s, err = find(v); s != nil || err != nil {
				return f.l.d.fault(err)
			}
		}
		return nil
	})
	return s, err
}

func (f *folding) hour(v *view) (*slice, error) { return f.span(v, hours, f.limit) }
func (f *folding) day(v *view) (*slice, error)  { return f.span(v, days, v.Hour-v.Hour%dayMinutes) }

// span is the next slice of hours or days before the limit.
func (f *folding) span(v *view, into level, limit int64) (*slice, error) {
	mark, done := v.at(into)
	if mark >= limit {
		return nil, nil
	}
	if *done == (part{}) {
		first, err := v.unfolded(v.ctx, v.tx, into)
		if err != nil {
			return nil, err
		}
		if at := min(first-first%into.width(), limit); at > mark {
			return &slice{into: into, at: at, skip: true}, nil
		}
	}
	s := &slice{into: into, at: mark, keys: usageShape}
	if done.workload == last {
		s.keys = nodeShape
	}
	s.first = *done.of(s.keys)
	from := stretch{into - 1, mark, mark + into.width()}
	for m := from.from; m < from.to; m += from.level.width() {
		s.finer = append(s.finer, m)
	}
	cost := int64(hourCost)
	if into == days {
		cost = dayCost
	}
	var err error
	if s.end, err = f.end(v, from.table(s.keys), s.keys.key, s.finer, s.first, cost); err != nil || into != hours || s.keys != usageShape {
		return s, err
	}
	query := fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", from.table(s.keys), s.keys.keys(1, len(s.finer)))
	return s, v.tx.QueryRowContext(v.ctx, query, append([]any{s.first, s.end}, s.finer...)...).Scan(&s.rows)
}

// What it costs to sum a row, and to write the sum, by that of a minute's.
const (
	hourCost  = 1
	dayCost   = 3
	groupCost = 16
)

// end is where a slice ends that begins with a key, such that it has not too
// many rows at the minutes.
func (f *folding) end(v *view, table, key string, minutes []any, first, cost int64) (int64, error) {
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE minute = $1 AND %[1]s >= $2 ORDER BY %[1]s LIMIT 1 OFFSET $3", key, table)
	end, rows := int64(last), max(1, f.l.slice.Load()/cost/int64(len(minutes)))
	for _, m := range minutes {
		ends, err := numbers(v.ctx, v.tx, query, m, first, rows)
		if err != nil {
			return 0, err
		}
		for _, e := range ends {
			end = min(end, e)
		}
	}
	return end, nil
}

// groups is the next slice of the groups of a day.
func (f *folding) groups(v *view) (s *slice, err error) {
	err = each(v.ctx, v.tx, func(scan func(...any) error) error {
		var day, first int64
		if err := scan(&day, &first); err != nil || s != nil || first == 0 && f.begun[day] {
			return err
		}
		s = &slice{into: days, at: day, first: first}
		return nil
	}, "SELECT minute, next FROM stale_day WHERE minute < $1 ORDER BY minute", v.Day)
	if err != nil || s == nil {
		return nil, err
	}
	s.end, err = f.end(v, usageShape.dayTable(), usageShape.key, []any{s.at}, s.first, groupCost)
	return s, err
}

// unfolded is the first minute of the rows that are to be folded into hours or
// days, and are not; math.MaxInt64 where there is none.
func (m *marks) unfolded(ctx context.Context, q queryer, into level) (int64, error) {
	if into == days {
		return first(ctx, q, m.Day, usageShape.hourTable(), nodeShape.hourTable())
	}
	kept, err := numbers(ctx, q, "SELECT day FROM kept WHERE day > $1 ORDER BY day", m.Hour-dayMinutes)
	if err != nil {
		return 0, err
	}
	for _, day := range kept {
		if day+dayMinutes <= m.MinuteFloor {
			continue
		}
		at, err := first(ctx, q, m.Hour, minuteTable(day), nodeMinuteTable(day))
		if err != nil || at < math.MaxInt64 {
			return at, err
		}
	}
	return math.MaxInt64, nil
}

// first is the least minute of two tables that is not before from, or
// math.MaxInt64.
func first(ctx context.Context, q queryer, from int64, tables ...string) (int64, error) {
	least := int64(math.MaxInt64)
	for _, table := range tables {
		found, err := numbers(ctx, q, "SELECT minute FROM "+table+" WHERE minute >= $1 ORDER BY minute LIMIT 1", from)
		if err != nil {
			return 0, err
		}
		for _, m := range found {
			least = min(least, m)
		}
	}
	return least, nil
}

// write folds a slice, and finds out how large the next one may be.
func (f *folding) write(ctx context.Context, s *slice) error {
	l := f.l
	var began time.Time
	err := l.write(ctx, func(t *txn) error {
		began = time.Now()
		if err := f.slice(t, s); err != nil {
			return fmt.Errorf("%s: %w", stamp(s.at), err)
		}
		failpoint.At("ledger.folding")
		return nil
	})
	if err != nil || s.skip {
		return err
	}
	took := time.Since(began)
	l.folds.Add(int64(took))
	l.slices.Add(1)
	size := l.slice.Load()
	switch {
	case took > hold:
		l.slice.Store(max(size*int64(hold)/int64(took), min(leastSlice, int64(l.cfg.Slice))))
	case took < hold/3 && s.end != last:
		l.slice.Store(min(2*size, int64(l.cfg.Slice)))
	}
	return nil
}

// stamp is a minute as people write it.
func stamp(minute int64) string { return time.Unix(minute*60, 0).UTC().Format("2006-01-02T15:04Z") }
