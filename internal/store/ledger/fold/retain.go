package fold

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// rowBytes is the approximate size of a row of minutes, including its part of the index tree.
const rowBytes = 200

// Retain drops what is too old: whole days of minutes, hours, and hashes of batches that no agent
// offers again. It drops nothing that is not folded.
func (f *Folder) Retain(ctx context.Context, now time.Time) error {
	day := func(age time.Duration) int64 {
		m := now.Add(-age).Unix() / 60
		return m - m%schema.DayMinutes
	}
	drop, oldest, err := f.droppableDays(ctx, day(f.cfg.Minutes))
	if err != nil {
		return db.Wrap(err, "dropping minutes")
	}
	for _, d := range drop {
		if err := f.dropDay(ctx, d); err != nil {
			return db.Wrap(err, "dropping the minutes of %s", schema.FormatMinute(d))
		}
	}
	if err := f.raiseFloor(ctx, day(f.cfg.Minutes)); err != nil {
		return db.Wrap(err, "dropping minutes")
	}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		if err := f.dropHours(ctx, s, min(day(f.cfg.Hours), oldest)); err != nil {
			return db.Wrap(err, "dropping hours")
		}
	}
	for _, old := range []struct {
		table, column string
		before        int64
	}{
		{"batch", "taken_ns", now.Add(-f.cfg.Batches).UnixNano()},
		{"booked", "taken_ns", now.Add(-f.cfg.Hours).UnixNano()},
		{"extent_range", "taken_ns", now.Add(-f.cfg.Minutes).UnixNano()},
		{"placed_boot", "taken_ns", now.Add(-f.cfg.Hours).UnixNano()},
		{"stream", "seen_ns", now.Add(-f.cfg.Hours - keepStreams).UnixNano()},
		{"share_part", "booked_ns", now.Add(-schema.KeepShares).UnixNano()},
		{"closing", "booked_ns", now.Add(-schema.KeepShares).UnixNano()},
		{"share_series", "last_ns", now.Add(-f.cfg.Hours - schema.KeepShares).UnixNano()},
		{"reconciled", "minute", day(f.cfg.Hours)},
	} {
		if err := f.deleteBefore(ctx, old.table, old.column, old.before); err != nil {
			return db.Wrap(err, "forgetting rows of %s", old.table)
		}
	}
	return db.Wrap(f.dropRuns(ctx, now), "forgetting kernel runs")
}

// raiseFloor moves the floor of minutes to the limit, where all minutes before it are dropped or never
// were: what is booked there later goes into hours and days. Otherwise each day of a window that spans
// years would have tables of minutes.
func (f *Folder) raiseFloor(ctx context.Context, limit int64) error {
	low := false
	err := f.db.View(ctx, func(v *db.View) error {
		low = v.MinuteFloor < limit && limit <= v.Hour
		return nil
	})
	if err != nil || !low {
		return err
	}
	return f.db.Write(ctx, func(t *db.Tx) error {
		kept, err := t.Ints("SELECT day FROM kept WHERE day < $1 LIMIT 1", limit)
		if err != nil || len(kept) > 0 || limit > t.Hour {
			return err
		}
		return setMark(t, "minute_floor", max(t.MinuteFloor, limit))
	})
}

// keepStreams is how much longer than hours the marks of unused streams are kept: a batch of a stream
// without a mark would be booked again.
const keepStreams = 365 * 24 * time.Hour

// runsInterval is how often kernel runs are dropped, since finding them reads all of them.
const runsInterval = time.Hour

// dropRuns drops the kernel runs of which no booked time is kept any more, apart from those that
// nodes measured last.
func (f *Folder) dropRuns(ctx context.Context, now time.Time) error {
	if now.Sub(f.runsDropped) < runsInterval && now.After(f.runsDropped) {
		return nil
	}
	const unused = "SELECT id FROM kernel_run WHERE id NOT IN (SELECT run FROM node) AND NOT EXISTS (SELECT 1 FROM booked b WHERE b.run = kernel_run.id) ORDER BY id"
	err := f.deleteSlices(ctx, func(v *db.View, rows int64) (place []int64, full bool, err error) {
		ids, err := db.Ints(ctx, v.SQL, unused+" LIMIT $1", rows)
		if len(ids) == 0 {
			return nil, false, err
		}
		return []int64{ids[len(ids)-1]}, int64(len(ids)) == rows, err
	}, func(t *db.Tx, place []int64) error {
		_, err := t.Exec("DELETE FROM kernel_run WHERE id <= $1 AND id IN ("+unused+")", place[0])
		return err
	})
	if err == nil {
		f.runsDropped = now
	}
	return err
}

// droppableDays returns the days whose minutes are folded and are before the limit or exceed the
// size limit, and the day up to which hours are folded.
func (f *Folder) droppableDays(ctx context.Context, limit int64) (drop []int64, folded int64, err error) {
	err = f.db.View(ctx, func(v *db.View) error {
		folded = v.Day
		var ds, sizes []int64
		var total int64
		err := db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var day, rows int64
			err := scan(&day, &rows)
			ds, sizes, total = append(ds, day), append(sizes, rows*rowBytes), total+rows*rowBytes
			return err
		}, "SELECT day, rows FROM kept ORDER BY day")
		for i, d := range ds {
			if d+schema.DayMinutes > v.Hour || d+schema.DayMinutes > limit && total <= f.cfg.MinuteBytes {
				break
			}
			drop, total = append(drop, d), total-sizes[i]
		}
		return f.db.Fault(err)
	})
	return drop, folded, err
}

// deleteSlices deletes rows a slice at a time. Each slice is one transaction that holds the writer
// half as long as a fold's, since old rows are not urgent. next reads where a slice of at most rows
// ends; an empty place means that nothing is left, and full that the slice has that many rows. del
// deletes up to place.
func (f *Folder) deleteSlices(ctx context.Context, next func(v *db.View, rows int64) (place []int64, full bool, err error), del func(t *db.Tx, place []int64) error) error {
	for {
		size := f.deleteRows.Load()
		var place []int64
		var full bool
		err := f.db.View(ctx, func(v *db.View) (err error) {
			place, full, err = next(v, size)
			return f.db.Fault(err)
		})
		if err != nil || len(place) == 0 {
			return err
		}
		var began time.Time
		err = f.db.Write(ctx, func(t *db.Tx) error {
			began = time.Now()
			return del(t, place)
		})
		if err != nil {
			return err
		}
		f.deleteRows.Store(nextSize(size, time.Since(began), maxHold/2, full, int64(f.cfg.Slice)))
	}
}

// dropDay drops a day's minutes unless they are not folded. The floor moves first, so that no
// reader relies on a part of them. DROP TABLE in SQLite visits all pages of a table, so the rows
// are deleted in slices before.
func (f *Folder) dropDay(ctx context.Context, day int64) error {
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		if !f.db.IsSQLite() {
			break
		}
		table := s.MinuteTable(day)
		err := f.deleteSlices(ctx, func(v *db.View, rows int64) (place []int64, full bool, err error) {
			err = db.Each(ctx, v.SQL, func(scan func(...any) error) error {
				place = make([]int64, 2)
				return scan(&place[0], &place[1])
			}, fmt.Sprintf("SELECT minute, %[1]s FROM %[2]s ORDER BY minute, %[1]s LIMIT 1 OFFSET $1", s.Key, table), rows)
			return place, true, err
		}, func(t *db.Tx, place []int64) error {
			if day+schema.DayMinutes > t.Hour {
				return fmt.Errorf("the day is not folded: %w", fault.ErrConflict)
			}
			if err := setMark(t, "minute_floor", max(t.MinuteFloor, day+schema.DayMinutes)); err != nil {
				return err
			}
			_, err := t.Exec(fmt.Sprintf("DELETE FROM %s WHERE (minute, %s) <= ($1, $2)", table, s.Key), place[0], place[1])
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.db.Write(ctx, func(t *db.Tx) error { return dropTables(t, day) })
}

// dropTables drops a day's tables of minutes unless they are not folded.
func dropTables(t *db.Tx, day int64) error {
	if day+schema.DayMinutes > t.Hour {
		return nil
	}
	if err := t.LockDays(); err != nil {
		return err
	}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		if err := t.DropTable(s.MinuteTable(day)); err != nil {
			return err
		}
	}
	if _, err := t.Exec("DELETE FROM kept WHERE day = $1", day); err != nil {
		return err
	}
	return setMark(t, "minute_floor", max(t.MinuteFloor, day+schema.DayMinutes))
}

// dropHours drops the hours before the limit. The floor moves first, so that no reader relies on a
// part of them.
func (f *Folder) dropHours(ctx context.Context, s *schema.Layout, limit int64) error {
	table := s.HourTable()
	return f.deleteSlices(ctx, func(v *db.View, rows int64) (place []int64, full bool, err error) {
		var least int64
		err = v.SQL.QueryRowContext(ctx, fmt.Sprintf("SELECT coalesce(min(minute), $1) FROM %s", table), limit).Scan(&least)
		if err != nil || least >= limit {
			return nil, false, err
		}
		ends, err := db.Ints(ctx, v.SQL, fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE minute = $1 ORDER BY %[1]s LIMIT 1 OFFSET $2", s.Key, table), least, rows)
		if len(ends) == 0 {
			return []int64{least, schema.MaxKey}, false, err
		}
		return []int64{least, ends[0]}, true, err
	}, func(t *db.Tx, place []int64) error {
		if t.HourFloor < limit {
			if err := setMark(t, "hour_floor", min(limit, t.Day)); err != nil {
				return err
			}
		}
		_, err := t.Exec(fmt.Sprintf("DELETE FROM %s WHERE minute = $1 AND %s <= $2", table, s.Key), place[0], place[1])
		return err
	})
}

// deleteBefore deletes the rows of a table whose column is less than before, except series that
// have shares and streams that have batches.
func (f *Folder) deleteBefore(ctx context.Context, table, column string, before int64) error {
	var only string
	switch table {
	case "stream":
		only = " AND NOT EXISTS (SELECT 1 FROM batch b WHERE b.stream = stream.id)"
	case "share_series":
		only = " AND NOT EXISTS (SELECT 1 FROM share_part p WHERE p.series = share_series.id)"
	}
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE %[1]s < $1%[3]s ORDER BY %[1]s LIMIT 1 OFFSET $2", column, table, only)
	return f.deleteSlices(ctx, func(v *db.View, rows int64) (place []int64, full bool, err error) {
		if place, err = db.Ints(ctx, v.SQL, query, before, rows); err != nil || len(place) > 0 {
			return place, true, err
		}
		if place, err = db.Ints(ctx, v.SQL, query, before, int64(0)); len(place) > 0 {
			place[0] = before - 1
		}
		return place, false, err
	}, func(t *db.Tx, place []int64) error {
		_, err := t.Exec(fmt.Sprintf("DELETE FROM %[1]s WHERE %[2]s <= $1%[3]s", table, column, only), place[0])
		if err == nil && table == "share_series" {
			_, err = t.Exec("DELETE FROM nested_series WHERE series NOT IN (SELECT id FROM share_series)")
		}
		return err
	})
}
