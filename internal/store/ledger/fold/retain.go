package fold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// rowBytes is the approximate size of a row of minutes, including its part of the index tree.
const rowBytes = 200

// Retain drops what is too old: whole days of minutes, hours, and hashes of batches that no agent
// offers again. It drops nothing that is not folded. A step that fails does not stop the others: a slow
// reader holds up only the days that it reads.
func (f *Folder) Retain(ctx context.Context, now time.Time) error {
	day := func(age time.Duration) int64 {
		m := now.Add(-age).Unix() / 60
		return m - m%schema.DayMinutes
	}
	dropped, err := f.dropMinutes(ctx, day(f.cfg.Minutes))
	errs := []error{err}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		errs = append(errs, db.Wrap(f.dropHours(ctx, s, min(day(f.cfg.Hours), dropped)), "dropping hours"))
	}
	age := func(age time.Duration) int64 { return now.Add(-age).UnixNano() }
	old := []oldRows{
		{table: "batch", column: "taken_ns", before: age(f.cfg.Batches)},
		{table: "booked", column: "taken_ns", before: age(f.cfg.Hours)},
		{table: "extent_range", column: "taken_ns", before: age(f.cfg.Minutes)},
		{table: "placed_boot", column: "taken_ns", before: age(f.cfg.Hours)},
		{table: "stream", column: "seen_ns", before: age(f.cfg.Hours + keepStreams), only: "NOT EXISTS (SELECT 1 FROM batch b WHERE b.stream = stream.id)"},
		{table: "share_part", column: "booked_ns", before: age(schema.KeepShares)},
		{table: "closing", column: "booked_ns", before: age(schema.KeepShares)},
		{table: "share_series", column: "last_ns", before: age(f.cfg.Hours + schema.KeepShares), only: "NOT EXISTS (SELECT 1 FROM share_part p WHERE p.series = share_series.id)", with: dropNested},
		{table: "connections", column: "minute", before: min(day(f.cfg.Hours), dropped), key: "workload"},
		{table: "reconciled", column: "minute", before: day(f.cfg.Hours)},
		{table: "slurm_job", column: "gone_ns", before: age(f.cfg.Minutes + keepPods), only: "gone_ns > 0", key: "id"},
		{table: "kube_job", column: "gone_ns", before: age(f.cfg.Minutes + keepPods), only: "gone_ns > 0", key: "id"},
	}
	errs = append(errs, db.Wrap(f.dropPods(ctx, age(f.cfg.Minutes+keepPods)), "forgetting pods"))
	for _, o := range old {
		errs = append(errs, db.Wrap(f.deleteSlices(ctx, o), "forgetting rows of %s", o.table))
	}
	return errors.Join(append(errs, db.Wrap(f.dropRuns(ctx, now), "forgetting kernel runs"))...)
}

// dropMinutes drops the days of minutes before the limit, and those that exceed the size limit. It returns up to
// where hours may be dropped, those of a day only after its minutes: up to what is folded, or to the first day
// that it failed to drop.
func (f *Folder) dropMinutes(ctx context.Context, limit int64) (through int64, err error) {
	drop, folded, err := f.droppableDays(ctx, limit)
	if err != nil {
		return 0, db.Wrap(err, "dropping minutes")
	}
	for _, d := range drop {
		if err := f.dropDay(ctx, d); err != nil {
			return min(d, folded), db.Wrap(err, "dropping the minutes of %s", schema.FormatMinute(d))
		}
	}
	if err := f.passMinutes(ctx, limit); err != nil {
		return 0, db.Wrap(err, "dropping minutes")
	}
	return folded, nil
}

// dropNested drops what belongs to series that are dropped.
func dropNested(t *db.Tx) error {
	_, err := t.Exec("DELETE FROM nested_series WHERE series NOT IN (SELECT id FROM share_series)")
	return err
}

// keepPods is how much longer than minutes the names of pods and jobs of Slurm that ended are kept: an agent that was without
// its server sends what they used later.
const keepPods = 24 * time.Hour

// dropPods drops the pods and volumes that ended before a time, with their containers, what they reserved, and what was used of
// volumes: in one transaction, as a figure may come that would be of none.
func (f *Folder) dropPods(ctx context.Context, before int64) error {
	const ended = "SELECT id FROM pod WHERE ended_ns > 0 AND ended_ns < $1"
	some := false
	err := f.db.View(ctx, func(v *db.View) error {
		ids, err := db.Ints(v.Ctx, v.SQL, ended+" LIMIT 1", before)
		some = len(ids) > 0
		return err
	})
	if err != nil || !some {
		return err
	}
	return f.db.Write(ctx, func(t *db.Tx) error {
		for _, table := range []string{"pod_container", "reservation", "reservation_carrier", "volume_use"} {
			if _, err := t.Exec("DELETE FROM "+table+" WHERE pod IN ("+ended+")", before); err != nil {
				return err
			}
		}
		_, err := t.Exec("DELETE FROM pod WHERE ended_ns > 0 AND ended_ns < $1", before)
		return err
	})
}

// raiseFloor moves a floor to a minute, where everything before it is folded. It fails if it is not: the
// database may have been replaced by an older copy of itself since a reader looked.
func raiseFloor(t *db.Tx, column string, to, folded int64) error {
	if to > folded {
		return fmt.Errorf("what is before %s is not folded: %w", schema.FormatMinute(to), fault.ErrConflict)
	}
	_, err := t.Exec(fmt.Sprintf("UPDATE counter SET %[1]s = $1 WHERE id = 1 AND %[1]s < $1", column), to)
	return err
}

// passMinutes moves the floor of minutes to the limit, where all minutes before it are dropped or never
// were: what is booked there later goes into hours and days. Otherwise each day of a window that spans
// years would have tables of minutes.
func (f *Folder) passMinutes(ctx context.Context, limit int64) error {
	low := false
	err := f.db.View(ctx, func(v *db.View) error {
		low = v.MinuteFloor < limit && limit <= v.Hour
		return nil
	})
	if err != nil || !low {
		return err
	}
	return f.db.Write(ctx, func(t *db.Tx) error { return raiseFloor(t, "minute_floor", limit, t.Hour) })
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
	const unused = "id NOT IN (SELECT run FROM node) AND NOT EXISTS (SELECT 1 FROM booked b WHERE b.run = kernel_run.id)"
	err := f.deleteSlices(ctx, oldRows{table: "kernel_run", column: "id", before: schema.MaxKey, only: unused})
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

// oldRows are rows to delete: those of a table whose column is less than before and that meet a condition.
type oldRows struct {
	table, column string
	before        int64
	only          string             // "" is all of them
	key           string             // orders rows with an equal column; "" is none
	with          func(*db.Tx) error // belongs to each transaction; nil is nothing
}

// deleteSlices deletes rows a slice at a time. Each slice is one transaction that holds the writer half as
// long as a fold's, since old rows are not urgent.
func (f *Folder) deleteSlices(ctx context.Context, o oldRows) error {
	columns, places, only := []string{o.column}, "$1", ""
	if o.key != "" {
		columns, places = append(columns, o.key), "$1, $2"
	}
	if o.only != "" {
		only = " AND " + o.only
	}
	list := strings.Join(columns, ", ")
	find := func(order string) string {
		return fmt.Sprintf("SELECT %s FROM %s WHERE %s < $1%s ORDER BY %s LIMIT 1 OFFSET $2", list, o.table, o.column, only, order)
	}
	del := fmt.Sprintf("DELETE FROM %s WHERE (%s) <= (%s)%s", o.table, list, places, only)
	for {
		size := f.deleteRows.Load()
		var last []any // *int64
		err := f.db.View(ctx, func(v *db.View) error {
			read := func(scan func(...any) error) error {
				for range columns {
					last = append(last, new(int64))
				}
				return scan(last...)
			}
			err := db.Each(ctx, v.SQL, read, find(list), o.before, size)
			if err == nil && last == nil { // fewer rows are left: all of them
				err = db.Each(ctx, v.SQL, read, find(strings.Join(columns, " DESC, ")+" DESC"), o.before, int64(0))
			}
			return f.db.Fault(err)
		})
		if err != nil || last == nil {
			return err
		}
		var began time.Time
		var deleted int64
		err = f.db.Write(ctx, func(t *db.Tx) (err error) {
			began = time.Now()
			if deleted, err = t.Exec(del, last...); err == nil && o.with != nil {
				err = o.with(t)
			}
			return err
		})
		if err != nil {
			return err
		}
		f.adapt(&f.deleteRows, time.Since(began), maxHold/2, deleted > size)
	}
}

// dropDay drops a day's minutes unless they are not folded. The floor moves with the first of them, so that
// no reader relies on a part of them. DROP TABLE in SQLite visits all pages of a table, so the rows
// are deleted in slices before.
func (f *Folder) dropDay(ctx context.Context, day int64) error {
	pass := func(t *db.Tx) error { return raiseFloor(t, "minute_floor", day+schema.DayMinutes, t.Hour) }
	layouts := []*schema.Layout{schema.UsageLayout, schema.NodeLayout}
	if f.db.IsSQLite() {
		for _, s := range layouts {
			if err := f.deleteSlices(ctx, oldRows{table: s.MinuteTable(day), column: "minute", key: s.Key, before: schema.MaxKey, with: pass}); err != nil {
				return err
			}
		}
	}
	return f.db.Write(ctx, func(t *db.Tx) error {
		if err := errors.Join(pass(t), t.LockDays()); err != nil {
			return err
		}
		for _, s := range layouts {
			if err := t.DropTable(s.MinuteTable(day)); err != nil {
				return err
			}
		}
		_, err := t.Exec("DELETE FROM kept WHERE day = $1", day)
		return err
	})
}

// dropHours drops the hours before the limit. The floor moves with the first of them, so that no reader relies on a
// part of them.
func (f *Folder) dropHours(ctx context.Context, s *schema.Layout, limit int64) error {
	pass := func(t *db.Tx) error { return raiseFloor(t, "hour_floor", limit, t.Day) }
	return f.deleteSlices(ctx, oldRows{table: s.HourTable(), column: "minute", key: s.Key, before: limit, with: pass})
}
