package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func BenchmarkFoldSQLite(b *testing.B)     { benchmarkFolds(b, ledgertest.SQLite) }
func BenchmarkFoldPostgreSQL(b *testing.B) { benchmarkFolds(b, ledgertest.PostgreSQL) }

// benchmarkFolds folds an hour of many workloads, and few minutes of very many workloads into an
// hour, a day and its groups.
func benchmarkFolds(b *testing.B, place func(testing.TB) string) {
	b.Run("hour", func(b *testing.B) { benchmarkFold(b, place, 20_000, 60, 2*time.Hour) })
	b.Run("day", func(b *testing.B) { benchmarkFold(b, place, 100_000, 4, 26*time.Hour) })
}

// benchmarkFold folds during constant booking, and reports the longest time that a booking took.
// CPU time is that of this process, which for PostgreSQL is only the client.
func benchmarkFold(b *testing.B, place func(testing.TB) string, workloads, minutes int, until time.Duration) {
	for b.Loop() {
		b.StopTimer()
		dsn := place(b)
		l := ledgertest.Open(b, dsn)
		seed(b, l, dsn, workloads, minutes)
		done, waits := make(chan struct{}), make(chan []time.Duration)
		go func() { waits <- book(b, l, done) }()
		before := cpu(b)
		b.StartTimer()
		if err := l.Fold(b.Context(), ledgertest.Day.Add(until)); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		spent := cpu(b) - before
		close(done)
		w := <-waits
		slices.Sort(w)
		b.ReportMetric(spent.Seconds(), "cpu-s")
		b.ReportMetric(w[len(w)-1].Seconds()*1e3, "ms-longest-wait")
		b.ReportMetric(w[len(w)/2].Seconds()*1e3, "ms-median-wait")
		b.ReportMetric(float64(len(w)), "bookings-meanwhile")
		b.StartTimer()
	}
}

// book writes until done, and returns how long each write took.
func book(b *testing.B, l *ledger.Ledger, done <-chan struct{}) (waits []time.Duration) {
	for n := 0; ; n++ {
		select {
		case <-done:
			return waits
		case <-time.After(5 * time.Millisecond):
		}
		began := time.Now()
		if err := l.SetMeta(b.Context(), "bench", fmt.Sprint(n)); err != nil {
			b.Error(err)
			return []time.Duration{0}
		}
		waits = append(waits, time.Since(began))
	}
}

// seed creates workloads with rows in each of some minutes.
func seed(b *testing.B, l *ledger.Ledger, dsn string, workloads, minutes int) {
	ledgertest.Node(b, l, "a")
	m := ledgertest.Day.Unix() / 60
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 1, m)
	if _, err := l.Book(b.Context(), []*batch.Entry{e}); err != nil {
		b.Fatal(err)
	}
	all := usage.All
	cols, values := []string{"minute", "workload", "rev", "present", "rough", "covered_ms"}, []string{"m", "w", "1", fmt.Sprint(int64(all)), "0", "60000"}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		cols, values = append(cols, r.String()), append(values, fmt.Sprintf("w * 1000 + m %% 60 + %d", r))
	}
	series := func(name string, from, to int64) string {
		if strings.HasPrefix(dsn, "postgres") {
			return fmt.Sprintf("generate_series(%d::bigint, %d) AS s%s(%[3]s)", from, to, name)
		}
		return fmt.Sprintf("(WITH RECURSIVE s(%[1]s) AS (SELECT %[2]d UNION ALL SELECT %[1]s + 1 FROM s WHERE %[1]s < %[3]d) SELECT %[1]s FROM s) AS s%[1]s", name, from, to)
	}
	db := ledgertest.DB(b, dsn)
	for _, q := range []string{
		"DELETE FROM minute_20260301",
		"INSERT INTO workload (node, short, job, rev) SELECT 1, w, 'job' || (w % 500), 1 FROM " + series("w", 2, int64(workloads)),
		fmt.Sprintf("INSERT INTO minute_20260301 (%s) SELECT %s FROM %s CROSS JOIN %s WHERE true ORDER BY m, w", strings.Join(cols, ", "), strings.Join(values, ", "),
			series("m", m, m+int64(minutes)-1), series("w", 1, int64(workloads))),
	} {
		if _, err := db.ExecContext(b.Context(), q); err != nil {
			b.Fatalf("%s: %v", q, err)
		}
	}
	if strings.HasPrefix(dsn, "postgres") {
		if _, err := db.ExecContext(b.Context(), "ANALYZE"); err != nil {
			b.Fatal(err)
		}
	}
}
