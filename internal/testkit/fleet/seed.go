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
// hours and the days up to today. It takes seconds, one hour at a time,
// so that the server can write meanwhile.
func seed(ctx context.Context, path string, days int, now time.Time) (err error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_pragma=busy_timeout(30000)&_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	today := now.Unix() / 86400 * 1440
	first := today - int64(days)*1440
	var list []string
	for at := first; at < today; at += 60 {
		list = append(list, backdate(at)...)
	}
	list = append(list, foldDays("", "workload", first, today), foldDays("node_", "node", first, today))
	list = append(list,
		fmt.Sprintf("UPDATE counter SET hour_mark = max(hour_mark, %[1]d), day_mark = max(day_mark, %[1]d), minute_floor = %[1]d", today),
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

// backdate returns the statements that write one row of an hour, from a minute on, for each
// workload and each node. They keep existing rows.
func backdate(minute int64) []string {
	var cols, values []string
	seeded.Each(func(r usage.Resource) {
		cols = append(cols, r.String())
		values = append(values, fmt.Sprintf("((w.id * 7919 + %d) %% 65521) * 3600000", minute+31*int64(r)))
	})
	names, amounts := strings.Join(cols, ", "), strings.Join(values, ", ")
	return []string{
		fmt.Sprintf("INSERT OR IGNORE INTO hour (minute, workload, rev, present, rough, covered_ms, %s) SELECT %d, w.id, 0, %d, 0, 3600000, %s FROM workload w ORDER BY w.id",
			names, minute, int64(seeded), amounts),
		fmt.Sprintf("INSERT OR IGNORE INTO node_hour (minute, node, rev, present, rough, covered_ms, cpus, whole_cpu, whole_memory, %s) SELECT %d, w.id, 0, %d, 0, 3600000, 32, 32 * 3600000000000, 3600 * %d, %s FROM node w ORDER BY w.id",
			names, minute, int64(seeded), int64(128<<30), amounts),
	}
}

// foldDays returns the statement that sums the hours of whole days into days.
func foldDays(prefix, key string, first, today int64) string {
	cols := "covered_ms"
	sums := "sum(covered_ms)"
	add := func(name string) { cols, sums = cols+", "+name, sums+", sum("+name+")" }
	seeded.Each(func(r usage.Resource) { add(r.String()) })
	if prefix != "" {
		cols, sums = cols+", cpus", sums+", max(cpus)"
		add("whole_cpu")
		add("whole_memory")
	}
	return fmt.Sprintf("INSERT OR IGNORE INTO %[1]sday (minute, %[2]s, rev, present, rough, %[3]s) SELECT minute / 1440 * 1440, %[2]s, 0, %[4]d, 0, %[5]s FROM %[1]shour WHERE minute >= %[6]d AND minute < %[7]d GROUP BY minute / 1440, %[2]s",
		prefix, key, cols, int64(seeded), sums, first, today)
}
