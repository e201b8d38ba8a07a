package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// A history is the content of a ledger: workloads with a row for each day.
type history struct {
	workloads, nodes, days int
	end                    time.Time // midnight after the last day
}

// seed writes h into the ledger dsn by SQL, which takes minutes instead of days. Then the
// ledger sums its groups as at the end of a day.
func seed(ctx context.Context, dsn string, h history) (err error) {
	l, err := ledger.Open(ctx, dsn, ledger.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	driver, name := "pgx", dsn
	if !strings.HasPrefix(dsn, "postgres") {
		path, err := filepath.Abs(strings.TrimPrefix(dsn, "sqlite:"))
		if err != nil {
			return err
		}
		driver, name = "sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_pragma=busy_timeout(10000)&_pragma=synchronous(off)"
	}
	db, err := sql.Open(driver, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	end := h.end.Unix() / 60
	first := end - int64(h.days)*1440
	statements := []string{
		fmt.Sprintf(`INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, through_ns, cpus, rev)
			WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
			SELECT 'seed' || i, 'c' || (i %% 4), 'host' || i, 'm' || i, 'b', 1, %d, 64, 0 FROM s`, h.nodes-1, h.end.UnixNano()),
		// About 2000 jobs in 100 namespaces, of 50 users and 20 projects.
		fmt.Sprintf(`INSERT INTO workload (node, short, wid, kind, key, name, job, username, project, namespace, pod, container, first_minute, last_minute, rev)
			WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
			SELECT n.id, s.i, 'seed' || s.i, 'container', 'k' || s.i, 'w' || s.i, 'job' || (s.i %% 2000), 'user' || (s.i %% 50), 'project' || (s.i %% 20),
				'ns' || (s.i %% 100), 'pod' || s.i, 'main', %d, %d, 0 FROM s JOIN node n ON n.node_id = 'seed' || (s.i %% %d)`,
			h.workloads-1, first, end-1, h.nodes),
	}
	for _, key := range []string{"app", "team", "tier"} {
		statements = append(statements, fmt.Sprintf(`INSERT INTO workload_label (workload, key, value)
			SELECT id, '%[1]s', '%[1]s' || (short %% %[2]d) FROM workload`, key, 100*len(key)))
	}
	var cols, values []string
	usage.Metered.Each(func(r usage.Resource) {
		d := r.Detail()
		scale := int64(86400) * 1000
		if d.Kind == usage.Integral {
			scale *= 1000
		}
		cols = append(cols, r.String())
		values = append(values, fmt.Sprintf("((w.id * 7919 + s.i * 104729 + %d) %% 65521) * %d", 31*int(r), scale))
	})
	days := func(table, from string, own, values string) string {
		return fmt.Sprintf(`INSERT INTO %s (minute, %s, rev, present, rough, covered_ms, %s)
			WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d)
			SELECT %d + s.i * 1440, w.id, 0, %d, 0, 86400000, %s FROM s CROSS JOIN %s w WHERE true ORDER BY 1, 2`,
			table, strings.TrimSuffix(from, "s"), own, h.days-1, first, int64(usage.Metered), values, from)
	}
	statements = append(statements,
		days("day", "workload", strings.Join(cols, ", "), strings.Join(values, ", ")),
		days("node_day", "node", "cpus, whole_cpu, whole_memory", "64, 5529600000000000, 23740000000000000"),
		fmt.Sprintf("UPDATE counter SET hour_mark = %d, day_mark = %d, minute_floor = %d, hour_floor = %d", end, end, end, end),
		fmt.Sprintf("INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM day WHERE minute >= %d", first),
	)
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%w in %.200s", err, s)
		}
	}
	return l.Fold(ctx, h.end)
}
