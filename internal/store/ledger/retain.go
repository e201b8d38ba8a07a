package ledger

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/fault"
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
	var forgotten int64
	err = l.view(ctx, func(v *view) error {
		return l.d.fault(v.tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM batch WHERE taken_ns < $1 LIMIT 1) AS old", now.Add(-l.cfg.Batches).UnixNano()).Scan(&forgotten))
	})
	if err != nil || forgotten == 0 {
		return about(err, "forgetting batches")
	}
	return about(l.write(ctx, func(t *txn) error {
		_, err := t.exec("DELETE FROM batch WHERE taken_ns < $1", now.Add(-l.cfg.Batches).UnixNano())
		return err
	}), "forgetting batches")
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

// dropRows is how many rows SQLite deletes at most at once, and leaves to DROP TABLE,
// which goes through all pages of a table: with a whole day of a large ledger it
// would hold the writer for seconds.
const dropRows = 1 << 17

// dropDay drops a day's minutes, unless they are not folded. The floor moves
// first, so that no reader counts on some of them.
func (l *Ledger) dropDay(ctx context.Context, day int64) error {
	for _, s := range []*shape{usageShape, nodeShape} {
		for l.d == lite {
			var to []int64
			err := l.view(ctx, func(v *view) (err error) {
				query := fmt.Sprintf("SELECT minute FROM %s ORDER BY minute, %s LIMIT 1 OFFSET $1", s.minuteTable(day), s.key)
				to, err = numbers(ctx, v.tx, query, int64(min(dropRows, l.cfg.Slice)))
				return l.d.fault(err)
			})
			if err != nil {
				return err
			}
			if len(to) == 0 {
				break
			}
			err = l.write(ctx, func(t *txn) error {
				if day+dayMinutes > t.Hour {
					return fmt.Errorf("it is not folded: %w", fault.ErrConflict)
				}
				if err := t.mark("minute_floor", max(t.MinuteFloor, day+dayMinutes)); err != nil {
					return err
				}
				_, err := t.exec("DELETE FROM "+s.minuteTable(day)+" WHERE minute <= $1", to[0])
				return err
			})
			if err != nil {
				return err
			}
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
	for {
		var least int64
		err := l.view(ctx, func(v *view) error {
			query := fmt.Sprintf("SELECT coalesce(min(minute), $1) FROM %s", s.hourTable())
			return l.d.fault(v.tx.QueryRowContext(ctx, query, limit).Scan(&least))
		})
		if err != nil || least >= limit {
			return err
		}
		err = l.write(ctx, func(t *txn) error {
			if t.HourFloor < limit {
				if err := t.mark("hour_floor", min(limit, t.Day)); err != nil {
					return err
				}
			}
			_, err := t.exec("DELETE FROM "+s.hourTable()+" WHERE minute = $1", least)
			return err
		})
		if err != nil {
			return err
		}
	}
}
