package read_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// fill writes daily rows of some workloads into the table of days, and returns their range.
func fill(t *testing.T, db *sql.DB, workloads, days int) (from, to time.Time) {
	t.Helper()
	from, to = ledgertest.Day, ledgertest.Day.AddDate(0, 0, days)
	first, end := from.Unix()/60, to.Unix()/60
	numbers := func(n int) string {
		return fmt.Sprintf("WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < %d)", n-1)
	}
	var cols, values []string
	all := usage.All
	all.Each(func(r usage.Resource) {
		cols = append(cols, r.String())
		values = append(values, fmt.Sprintf("(w.id * 7919 + s.i * 104729 + %d) %% 65521 * 100000000000", r))
	})
	for _, text := range []string{
		numbers(10) + ` INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, through_ns, cpus, rev)
			SELECT 'n' || i, 'c', 'n' || i, 'm' || i, 'b', 1, 1, 1, 0 FROM s`,
		numbers(workloads) + fmt.Sprintf(` INSERT INTO workload (node, short, wid, kind, key, name, job, username, project, namespace, pod, container, first_minute, last_minute, rev)
			SELECT n.id, s.i, 'w' || s.i, 'job', s.i, s.i, 'job' || (s.i %% 37), '', '', '', '', '', %d, %d, 0 FROM s JOIN node n ON n.node_id = 'n' || (s.i %% 10)`, first, end-1),
		numbers(days) + fmt.Sprintf(` INSERT INTO day (minute, workload, rev, present, rough, covered_ms, %s)
			SELECT %d + s.i * 1440, w.id, 0, %d, 1 << (2 * (w.id %% 20)), s.i, %s FROM s CROSS JOIN workload w`,
			strings.Join(cols, ", "), first, int64(all), strings.Join(values, ", ")),
		fmt.Sprintf("UPDATE counter SET hour_mark = %[1]d, day_mark = %[1]d, minute_floor = %[1]d, hour_floor = %[1]d", end),
	} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	return from, to
}

// TestWorkers checks that a parallel scan reads all rows once and from one snapshot: while
// transactions move amounts between the first and the last day, no answer changes.
func TestWorkers(t *testing.T) {
	const workloads, days = 2000, 12
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	db := ledgertest.DB(t, dsn)
	from, to := fill(t, db, workloads, days)

	want := map[string]*query.Group{}
	for id := 1; id <= workloads; id++ {
		key := fmt.Sprintf("job%d", (id-1)%37)
		g := want[key]
		if g == nil {
			g = &query.Group{Keys: []string{key}, Nodes: 10, First: from, Last: to}
			g.Usage.Present = usage.All
			want[key] = g
		}
		for day := range days {
			g.Usage.Covered = g.Usage.Covered.Add(int64(time.Duration(day) * time.Millisecond))
			usage.All.Each(func(r usage.Resource) {
				v := unit.Sum{}.Add(int64((id*7919+day*104729+int(r))%65521) * 100000000000)
				if s := &g.Usage.Sum[r]; r.Detail().Kind != usage.Peak {
					*s = s.Plus(v)
				} else if v.Compare(*s) > 0 {
					*s = v
				}
			})
		}
	}
	ask := func() {
		t.Helper()
		a, err := l.Usage(t.Context(), query.Query{From: from, To: to, By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Groups) != len(want) {
			t.Fatalf("%d groups, want %d", len(a.Groups), len(want))
		}
		for i := range a.Groups {
			got := &a.Groups[i]
			if q := got.Usage.Quality.Get(usage.CPUUser); q != usage.Apportioned {
				t.Fatalf("the quality of %v is %v", got.Keys, q)
			}
			got.Usage.Quality = usage.Qualities{}
			if d := cmp.Diff(want[got.Keys[0]], got, cmp.Comparer(func(a, b unit.Sum) bool { return a == b })); d != "" {
				t.Fatal(d)
			}
		}
	}
	for range 2 {
		ask()
	}

	ctx, cancel := context.WithCancel(t.Context())
	moved := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			err = move(t.Context(), db, from.Unix()/60, to.Unix()/60-1440)
		}
		moved <- err
	}()
	for range 6 {
		ask()
	}
	cancel()
	if err := <-moved; err != nil {
		t.Error(err)
	}
}

// move moves CPU time of a workload from one day to another, and back the next time.
func move(ctx context.Context, db *sql.DB, from, to int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit
	for _, text := range []string{
		"UPDATE counter SET rev = rev + 1",
		fmt.Sprintf("UPDATE day SET cpu = cpu + (SELECT 1 - 2 * (rev %% 2) FROM counter) * 1000000 WHERE workload = 5 AND minute = %d", from),
		fmt.Sprintf("UPDATE day SET cpu = cpu - (SELECT 1 - 2 * (rev %% 2) FROM counter) * 1000000 WHERE workload = 5 AND minute = %d", to),
	} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// TestChosenWorkloads checks that workloads chosen by a filter are looked up where that costs less
// than scanning, and that old workloads are not filtered for a range with few rows.
func TestChosenWorkloads(t *testing.T) {
	const workloads, days = 4000, 3
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	db := ledgertest.DB(t, dsn)
	from, to := fill(t, db, workloads, days)
	// The last day has a hundred rows, and nothing follows it.
	if _, err := db.ExecContext(t.Context(), "DELETE FROM day WHERE minute = $1 AND workload > 100", to.Unix()/60-1440); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		job      string
		from, to time.Time
		want     int
	}{
		{"job5", from, to, 108}, {"nosuch", from, to, 0}, {"", from, to, -1},
		{"job5", to.AddDate(0, 0, -1), to, -1}, {"nosuch", to.AddDate(0, 0, -1), to, -1}, {"job5", to, to.Add(time.Hour), -1},
	} {
		q := query.Query{From: c.from, To: c.to, By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}}
		if c.job != "" {
			q.Where = map[query.Dimension][]string{query.ByJob: {c.job}}
		}
		if n, err := l.KeyLookups(t.Context(), q); err != nil || n != c.want {
			t.Errorf("%q from %v: %d, want %d; %v", c.job, c.from, n, c.want, err)
		}
		a, err := l.Usage(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var covered time.Duration
		for i := range a.Groups {
			covered += time.Duration(a.Groups[i].Usage.Covered.Int64())
		}
		// On day i each row has i ms.
		var want time.Duration
		for id := 1; id <= workloads; id++ {
			for day := range days {
				at := from.AddDate(0, 0, day)
				if is := fmt.Sprintf("job%d", (id-1)%37); !at.Before(c.from) && at.Before(c.to) && (c.job == "" || c.job == is) && (day < days-1 || id <= 100) {
					want += time.Duration(day) * time.Millisecond
				}
			}
		}
		if covered != want {
			t.Errorf("%q from %v: %v, want %v", c.job, c.from, covered, want)
		}
	}
}
