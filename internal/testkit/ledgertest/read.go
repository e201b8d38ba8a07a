package ledgertest

import (
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	hourMinutes = 60
	dayMinutes  = 24 * hourMinutes
)

// DB opens the database of a ledger a second time, to read its tables.
func DB(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	driver := "pgx"
	if !strings.HasPrefix(dsn, "postgres") {
		driver, dsn = "sqlite", "file:"+(&url.URL{Path: dsn}).EscapedPath()+"?_pragma=busy_timeout(10000)"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// A reader reads the tables of a ledger.
type reader struct {
	t  testing.TB
	db *sql.DB
}

// rows calls f with each row of a result, as a map by column name.
func (r reader) rows(f func(map[string]any), query string, args ...any) {
	r.t.Helper()
	rows, err := r.db.Query(query, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	names, err := rows.Columns()
	if err != nil {
		r.t.Fatal(err)
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			r.t.Fatal(err)
		}
		row := make(map[string]any, len(names))
		for i, n := range names {
			row[n] = values[i]
		}
		f(row)
	}
	if err := rows.Err(); err != nil {
		r.t.Fatal(err)
	}
	if err := rows.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// number returns the single integer of a result.
func (r reader) number(query string, args ...any) (n int64) {
	r.t.Helper()
	if err := r.db.QueryRow(query, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// table returns the minute table of a day.
func table(prefix string, day int64) string {
	return prefix + "minute_" + time.Unix(day*60, 0).UTC().Format("20060102")
}

// keptDays returns the days that have minute tables.
func (r reader) keptDays() (days []int64) {
	r.rows(func(row map[string]any) { days = append(days, row["day"].(int64)) }, "SELECT day FROM kept ORDER BY day")
	return days
}

// usage reads a table of workload rows, or all minute tables.
func (r reader) usage(tables ...string) map[rowKey]*usage.Usage {
	r.t.Helper()
	got := map[rowKey]*usage.Usage{}
	for _, table := range tables {
		r.rows(func(row map[string]any) {
			at := rowKey{row["node_id"].(string), workload.ShortID(row["short"].(int64)), row["minute"].(int64)}
			if row["present"].(int64) == 0 && row["covered_ms"].(int64) == 0 && row["workload"].(int64)>>40 != 0 {
				return
			}
			if got[at] != nil {
				r.t.Errorf("%s has two rows of %v", table, at)
			}
			got[at] = amounts(row)
		}, "SELECT n.node_id, w.short, m.* FROM "+table+" m JOIN workload w ON w.id = m.workload & 1099511627775 JOIN node n ON n.id = w.node")
	}
	return got
}

// amounts returns the usage of a row.
func amounts(row map[string]any) *usage.Usage {
	u := &usage.Usage{Present: usage.Set(row["present"].(int64)), Covered: time.Duration(row["covered_ms"].(int64)) * time.Millisecond}
	rough := [2]uint64{uint64(row["rough"].(int64)), uint64(row["rough_high"].(int64))}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		u.Amount[r] = row[r.String()].(int64)
		if !u.Present.Has(r) {
			continue
		}
		switch rough[r/32] >> (2 * (r % 32)) & 3 {
		case 0:
			u.Quality.Set(r, usage.Measured)
		case 1:
			u.Quality.Set(r, usage.Apportioned)
		default:
			u.Quality.Set(r, usage.Modelled)
		}
	}
	return u
}

// whole reads a table of nodes.
func (r reader) whole(tables ...string) map[rowKey]*batch.NodeMinute {
	r.t.Helper()
	got := map[rowKey]*batch.NodeMinute{}
	for _, table := range tables {
		r.rows(func(row map[string]any) {
			n := &batch.NodeMinute{
				Minute: row["minute"].(int64), CPUs: int(row["cpus"].(int64)),
				Violations: row["violations"].(int64), Lost: row["lost"].(int64), Total: *amounts(row),
			}
			n.Covered, n.Total.Covered = n.Total.Covered, 0
			for i, w := range usage.Wholes {
				n.Whole[i] = row["whole_"+w.String()].(int64)
				n.Skew[i] = row["skew_"+w.String()].(int64)
			}
			got[rowKey{node: row["node_id"].(string), minute: n.Minute}] = n
		}, "SELECT n.node_id, m.* FROM "+table+" m JOIN node n ON n.id = m.node")
	}
	return got
}

// groups returns the sums of CPU by job and day.
func (r reader) groups() map[group]int64 {
	got := map[group]int64{}
	r.rows(func(row map[string]any) {
		if v := row["cpu_hi"].(int64)<<32 + row["cpu_lo"].(int64); v != 0 {
			got[group{row["job"].(string), row["minute"].(int64)}] += v
		}
	}, "SELECT job, minute, cpu_hi, cpu_lo FROM group_day")
	return got
}

// A folded is how far rows are folded into those of a level: the spans before mark, and of
// the span at mark the keys before workload and node.
type folded struct{ floor, mark, workload, node int64 }

// ids returns the keys of rows: of nodes by node id, and of workloads by node id and short
// id.
func (r reader) ids() (nodes map[string]int64, workloads map[rowKey]int64) {
	nodes, workloads = map[string]int64{}, map[rowKey]int64{}
	r.rows(func(row map[string]any) { nodes[row["node_id"].(string)] = row["id"].(int64) }, "SELECT id, node_id FROM node")
	r.rows(func(row map[string]any) {
		workloads[rowKey{node: row["node_id"].(string), workload: workload.ShortID(row["short"].(int64))}] = row["id"].(int64)
	}, "SELECT w.id, w.short, n.node_id FROM workload w JOIN node n ON n.id = w.node")
	return nodes, workloads
}

// parts returns how far hours and days are folded.
func (r reader) parts() (hours, days folded) {
	err := r.db.QueryRow("SELECT hour_floor, hour_mark, hour_workload, hour_node, day_mark, day_workload, day_node FROM counter").
		Scan(&hours.floor, &hours.mark, &hours.workload, &hours.node, &days.mark, &days.workload, &days.node)
	if err != nil {
		r.t.Fatal(fmt.Errorf("marks: %w", err))
	}
	return hours, days
}

// marks returns how far minutes are folded, and from where they are kept.
func (r reader) marks() (hour, day, minuteFloor, hourFloor int64) {
	if err := r.db.QueryRow("SELECT hour_mark, day_mark, minute_floor, hour_floor FROM counter").Scan(&hour, &day, &minuteFloor, &hourFloor); err != nil {
		r.t.Fatal(fmt.Errorf("marks: %w", err))
	}
	return hour, day, minuteFloor, hourFloor
}
