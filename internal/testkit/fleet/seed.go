package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"mete.dev/mete/internal/model/usage"
)

// seeded are the resources of the seeded rows.
var seeded = usage.SetOf(usage.CPU, usage.CPUUser, usage.CPUSystem, usage.Memory, usage.NetworkRx, usage.NetworkTx, usage.EnergyPackage, usage.EnergyError)

// seed writes past rows into a SQLite ledger: for each workload that it has, rows of the
// hours up to this one, and of the days up to today. It takes seconds, one hour at a time,
// so that the server can write meanwhile.
func seed(ctx context.Context, path string, days int, now time.Time) (err error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_pragma=busy_timeout(30000)&_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	hour, today := now.Unix()/3600*60, now.Unix()/86400*1440
	first := today - int64(days)*1440
	var list []string
	for at := first; at < today; at += 1440 {
		list = append(list, backdate("day", at, 24)...)
	}
	for at := first; at < hour; at += 60 {
		list = append(list, backdate("hour", at, 1)...)
	}
	list = append(list,
		fmt.Sprintf("UPDATE counter SET hour_mark = max(hour_mark, %d), day_mark = max(day_mark, %d), minute_floor = %[1]d", hour, today),
		fmt.Sprintf("UPDATE workload SET first_minute = min(first_minute, %d)", first),
		fmt.Sprintf("INSERT OR IGNORE INTO stale_day (minute) SELECT DISTINCT minute FROM day WHERE minute >= %d", first),
		"ANALYZE")
	for _, s := range list {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%w in %.200s", err, s)
		}
	}
	return nil
}

// backdate returns the statements that write one row of the given number of hours, from a
// minute on, for each workload and each node. They keep existing rows.
func backdate(table string, minute int64, hours int) []string {
	var cols, values []string
	seeded.Each(func(r usage.Resource) {
		cols = append(cols, r.String())
		values = append(values, fmt.Sprintf("((w.id * 7919 + %d) %% 65521) * %d", minute+31*int64(r), int64(hours)*3_600_000))
	})
	names, amounts := strings.Join(cols, ", "), strings.Join(values, ", ")
	return []string{
		fmt.Sprintf("INSERT OR IGNORE INTO %s (minute, workload, rev, present, rough, covered_ms, %s) SELECT %d, w.id, 0, %d, 0, %d, %s FROM workload w ORDER BY w.id",
			table, names, minute, int64(seeded), hours*3_600_000, amounts),
		fmt.Sprintf("INSERT OR IGNORE INTO node_%s (minute, node, rev, present, rough, covered_ms, cpus, whole_cpu, whole_memory, %s) SELECT %d, w.id, 0, %d, 0, %d, 32, %d, %d, %s FROM node w ORDER BY w.id",
			table, names, minute, int64(seeded), hours*3_600_000, int64(hours)*32*3_600_000_000_000, int64(hours)*3600*128<<30, amounts),
	}
}
