package ledger

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// rowBytes is about what a row of minutes takes, its share of the tree
// included.
const rowBytes = 200

// Retain drops what is too old: whole days of minutes, hours, and the hashes of
// batches that nobody will offer again. Nothing goes before it is folded.
func (l *Ledger) Retain(ctx context.Context, now time.Time) error {
	day := func(age time.Duration) int64 {
		m := now.Add(-age).Unix() / 60
		return m - m%dayMinutes
	}
	drop, oldest, err := l.droppable(ctx, day(l.cfg.Minutes))
	if err != nil {
		return about(err, "dropping minutes")
	}
	for _, d := range drop {
		if err := l.dropDay(ctx, d); err != nil {
			return about(err, "dropping the minutes of %s", stamp(d))
		}
	}
	for _, s := range []*shape{usageShape, nodeShape} {
		if err := l.dropHours(ctx, s, min(day(l.cfg.Hours), oldest)); err != nil {
			return about(err, "dropping hours")
		}
	}
	for _, old := range []struct {
		table, column string
		before        int64
	}{
		{"batch", "taken_ns", now.Add(-l.cfg.Batches).UnixNano()},
		{"share_part", "booked_ns", now.Add(-sharesKept).UnixNano()},
		{"closing", "booked_ns", now.Add(-sharesKept).UnixNano()},
		{"share_series", "last_ns", now.Add(-l.cfg.Hours - sharesKept).UnixNano()},
		{"reconciled", "minute", day(l.cfg.Hours)},
	} {
		if err := l.forget(ctx, old.table, old.column, old.before); err != nil {
			return about(err, "forgetting rows of %s", old.table)
		}
	}
	return nil
}

// droppable are the days whose minutes are folded and are before the limit, or
// take more room than they may; and the day before which hours are folded.
func (l *Ledger) droppable(ctx context.Context, limit int64) (drop []int64, folded int64, err error) {
	err = l.view(ctx, func(v *view) error {
		folded = v.Day
		var ds, sizes []int64
		var total int64
		err := each(ctx, v.tx, func(scan func(...any) error) error {
			var day, rows int64
			err := scan(&day, &rows)
			ds, sizes, total = append(ds, day), append(sizes, rows*rowBytes), total+rows*rowBytes
			return err
		}, "SELECT day, rows FROM kept ORDER BY day")
		for i, d := range ds {
			if d+dayMinutes > v.Hour || d+dayMinutes > limit && total <= l.cfg.MinuteBytes {
				break
			}
			drop, total = append(drop, d), total-sizes[i]
		}
		return l.d.fault(err)
	})
	return drop, folded, err
}

// thin deletes rows a slice at a time, each in one transaction that holds the
// writer for half as long as a fold's: no one waits for old rows to go. next finds where a slice of some rows ends, reading
// only; an empty place is the end of all, and full says that there are so many.
// del deletes up to there.
func (l *Ledger) thin(ctx context.Context, next func(v *view, rows int64) (place []int64, full bool, err error), del func(t *txn, place []int64) error) error {
	for {
		size := l.thins.Load()
		var place []int64
		var full bool
		err := l.view(ctx, func(v *view) (err error) {
			place, full, err = next(v, size)
			return l.d.fault(err)
		})
		if err != nil || len(place) == 0 {
			return err
		}
		var began time.Time
		err = l.write(ctx, func(t *txn) error {
			began = time.Now()
			return del(t, place)
		})
		if err != nil {
			return err
		}
		switch took := time.Since(began); {
		case took > hold/2:
			l.thins.Store(max(size*int64(hold/2)/int64(took), min(leastSlice, int64(l.cfg.Slice))))
		case took < hold/6 && full:
			l.thins.Store(min(2*size, int64(l.cfg.Slice)))
		}
	}
}

// dropDay drops a day's minutes, unless they are not folded. The floor moves
// first, so that no reader counts on some of them. DROP TABLE of SQLite goes
// through all pages of a table, so there only the last rows are left to it.
func (l *Ledger) dropDay(ctx context.Context, day int64) error {
	for _, s := range []*shape{usageShape, nodeShape} {
		if l.d != lite {
			break
		}
		table := s.minuteTable(day)
		err := l.thin(ctx, func(v *view, rows int64) (place []int64, full bool, err error) {
			err = each(ctx, v.tx, func(scan func(...any) error) error {
				place = make([]int64, 2)
				return scan(&place[0], &place[1])
			}, fmt.Sprintf("SELECT minute, %[1]s FROM %[2]s ORDER BY minute, %[1]s LIMIT 1 OFFSET $1", s.key, table), rows)
			return place, true, err
		}, func(t *txn, place []int64) error {
			if day+dayMinutes > t.Hour {
				return fmt.Errorf("it is not folded: %w", fault.ErrConflict)
			}
			if err := t.mark("minute_floor", max(t.MinuteFloor, day+dayMinutes)); err != nil {
				return err
			}
			_, err := t.exec(fmt.Sprintf("DELETE FROM %s WHERE (minute, %s) <= ($1, $2)", table, s.key), place[0], place[1])
			return err
		})
		if err != nil {
			return err
		}
	}
	return l.write(ctx, func(t *txn) error { return t.drop(day) })
}

// drop drops a day's tables of minutes, unless they are not folded.
func (t *txn) drop(day int64) error {
	if day+dayMinutes > t.Hour {
		return nil
	}
	if t.l.d.dropping != "" {
		if err := t.define(t.l.d.dropping); err != nil {
			return err
		}
	}
	for _, s := range []*shape{usageShape, nodeShape} {
		table := s.minuteTable(day)
		if err := t.unprepare(table); err != nil {
			return err
		}
		delete(t.l.tables, table)
		if err := t.define("DROP TABLE IF EXISTS " + table); err != nil {
			return err
		}
	}
	if _, err := t.exec("DELETE FROM kept WHERE day = $1", day); err != nil {
		return err
	}
	return t.mark("minute_floor", max(t.MinuteFloor, day+dayMinutes))
}

// dropHours drops the hours before the limit. The floor moves first, so that no
// reader counts on some of them.
func (l *Ledger) dropHours(ctx context.Context, s *shape, limit int64) error {
	table := s.hourTable()
	return l.thin(ctx, func(v *view, rows int64) (place []int64, full bool, err error) {
		var least int64
		err = v.tx.QueryRowContext(ctx, fmt.Sprintf("SELECT coalesce(min(minute), $1) FROM %s", table), limit).Scan(&least)
		if err != nil || least >= limit {
			return nil, false, err
		}
		ends, err := numbers(ctx, v.tx, fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE minute = $1 ORDER BY %[1]s LIMIT 1 OFFSET $2", s.key, table), least, rows)
		if len(ends) == 0 {
			return []int64{least, last}, false, err
		}
		return []int64{least, ends[0]}, true, err
	}, func(t *txn, place []int64) error {
		if t.HourFloor < limit {
			if err := t.mark("hour_floor", min(limit, t.Day)); err != nil {
				return err
			}
		}
		_, err := t.exec(fmt.Sprintf("DELETE FROM %s WHERE minute = $1 AND %s <= $2", table, s.key), place[0], place[1])
		return err
	})
}

// forget deletes the rows of a table whose column is less than a value, but no
// series that has shares.
func (l *Ledger) forget(ctx context.Context, table, column string, before int64) error {
	var only string
	if table == "share_series" {
		only = " AND NOT EXISTS (SELECT 1 FROM share_part p WHERE p.series = share_series.id)"
	}
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE %[1]s < $1%[3]s ORDER BY %[1]s LIMIT 1 OFFSET $2", column, table, only)
	return l.thin(ctx, func(v *view, rows int64) (place []int64, full bool, err error) {
		if place, err = numbers(ctx, v.tx, query, before, rows); err != nil || len(place) > 0 {
			return place, true, err
		}
		if place, err = numbers(ctx, v.tx, query, before, int64(0)); len(place) > 0 {
			place[0] = before - 1
		}
		return place, false, err
	}, func(t *txn, place []int64) error {
		_, err := t.exec(fmt.Sprintf("DELETE FROM %[1]s WHERE %[2]s <= $1%[3]s", table, column, only), place[0])
		return err
	})
}
