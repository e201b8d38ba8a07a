package read_test

import (
	"testing"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestTop checks that a query limited by Top returns the same answer as the complete query.
func TestTop(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	db := ledgertest.DB(t, dsn)
	from, to := fill(t, db, 2000, 3)
	for _, text := range []string{
		"UPDATE workload SET name = 'idle', kind = 'idle' WHERE id <= 10", // one of each node
		"UPDATE workload SET name = 'system', kind = 'system' WHERE id > 10 AND id <= 20",
		"UPDATE day SET present = 1 << 30 WHERE workload % 7 = 0", // absent sorts last
		"UPDATE day SET cpu = 0, cpu_user = 0, memory_peak = 0 WHERE workload % 3 > 0",
		"INSERT INTO node_day (minute, node, rev, present, cpus, covered_ms) SELECT d.minute, n.id, 0, 0, 1, 86400000 FROM node n, (SELECT DISTINCT minute FROM day) d",
	} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	q := query.Query{From: from, To: to, By: []query.Dimension{query.ByWorkload, query.ByNode}, Scope: query.Scope{All: true}}
	for _, key := range []string{"", "cpu_user_seconds", "memory_peak_bytes", "memory_average_bytes", "energy_joules"} {
		for _, n := range []int{1, 6, 300, 1979, 1980, 5000} {
			var said [2]string
			for i, top := range []*query.Top{nil, v1.NewTop(q.By, key, n)} {
				q.Top = top
				a, err := l.Usage(t.Context(), q)
				if err != nil || a.AveragedOver == 0 {
					t.Fatal(a.AveragedOver, err)
				}
				if most := [2]int{2000, min(n, 1980) + 20}[i]; len(a.Groups) != most || a.OtherGroups != 2000-most {
					t.Fatalf("%q, %d of them: %d groups and %d in the rest, want %d", key, n, len(a.Groups), a.OtherGroups, most)
				}
				v1.SortGroups(a, key)
				v1.LimitGroups(a, n)
				said[i] = string(v1.JSON(v1.UsageOf(a, nil)))
			}
			if said[0] != said[1] {
				t.Errorf("%q, %d of them:\n%.5000s\nwant\n%.5000s", key, n, said[1], said[0])
			}
		}
	}
}
