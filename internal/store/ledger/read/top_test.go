package read_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
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

// TestLimit checks that a query with a limit returns the first groups of the complete answer and the same
// capacity, which depends on the qualities of all groups, and that it makes no more groups than that.
func TestLimit(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	various(t, l)
	for _, q := range []query.Query{
		{By: []query.Dimension{query.ByWorkload}},
		{By: []query.Dimension{query.ByWorkload}, Idle: power.Used.String()},
		{By: []query.Dimension{query.ByWorkload}, Top: &query.Top{AlwaysKept: func(keys []string) bool { return keys[0] != "idle" }}},
	} {
		q.From, q.To, q.Scope = ledgertest.Day, ledgertest.Day.AddDate(0, 0, 3), query.Scope{All: true}
		want, err := l.Usage(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 3, len(want.Groups), len(want.Groups) + 1} {
			q.Limit = n
			got, err := l.Usage(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if q.Idle == "" && cap(got.Groups) > n {
				t.Errorf("%d groups are made for %d", cap(got.Groups), n)
			}
			some := *want
			some.Groups = some.Groups[:min(n, len(some.Groups))]
			if d := cmp.Diff(&some, got, cmp.AllowUnexported(unit.Sum{})); d != "" {
				t.Errorf("limit %d, idle %q (-want +got):\n%s", n, q.Idle, d)
			}
		}
		if q.Idle == "" && want.Capacity.Quality.Get(usage.EnergyDRAM) != usage.Modelled {
			t.Errorf("capacity: %+v", want.Capacity)
		}
	}
}
