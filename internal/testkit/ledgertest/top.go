package ledgertest

import (
	"pgregory.net/rapid"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// checkTop compares the answer to a query with a limit with the complete answer.
func (r *queryRound) checkTop(q query.Query) {
	n, key := rapid.IntRange(1, 4).Draw(r.T, "top"), r.oneOf("sort", "", "cpu_seconds", "memory_average_bytes", "memory_peak_bytes", "energy_joules", "energy_idle_joules", "energy_average_watts")
	q.Limit, q.Idle = 0, r.oneOf("idle", "", "", "used")
	format := func(top *query.Top) string {
		q.Top = top
		a, err := r.l.Usage(r.t.Context(), q)
		if err != nil {
			r.Fatalf("%+v: %v", q, err)
		}
		v1.SortGroups(a, key)
		v1.LimitGroups(a, n)
		return string(v1.JSON(v1.UsageOf(a, nil)))
	}
	if want, got := format(nil), format(v1.NewTop(q.By, key, n)); got != want {
		r.Fatalf("%+v: by %q, %d of them:\n%s\nwant\n%s", q, key, n, got, want)
	}
}
