package ledger_test

import (
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/ledgertest"
)

func BenchmarkRetainSQLite(b *testing.B)     { benchmarkRetain(b, ledgertest.SQLite) }
func BenchmarkRetainPostgreSQL(b *testing.B) { benchmarkRetain(b, ledgertest.PostgreSQL) }

// benchmarkRetain drops a million rows of each kind during constant booking, and reports the
// longest time that a booking took.
func benchmarkRetain(b *testing.B, place func(testing.TB) string) {
	const workloads, minutes = 100_000, 10
	for _, c := range []struct {
		name string
		sql  []string
		age  time.Duration // after the day
	}{
		{"minutes", nil, 9 * 24 * time.Hour},
		{"hours", []string{"INSERT INTO hour SELECT * FROM minute_20260301"}, 800 * 24 * time.Hour},
		{"batches", nil, 3 * 24 * time.Hour},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				dsn := place(b)
				l := ledgertest.Open(b, dsn)
				seed(b, l, dsn, workloads, minutes)
				db := ledgertest.DB(b, dsn)
				marks := "UPDATE counter SET hour_mark = 99999999, day_mark = 99999999 WHERE id = 1"
				if c.name == "batches" {
					c.sql = []string{"INSERT INTO batch (stream, number, hash, taken_ns) SELECT CAST('s' AS " + blob(dsn) + "), 10 + workload * 20 + minute % 20, CAST('h' AS " + blob(dsn) + "), minute * 60000000000 + workload FROM minute_20260301"}
				}
				for _, q := range append(c.sql, marks) {
					if _, err := db.ExecContext(b.Context(), q); err != nil {
						b.Fatalf("%s: %v", q, err)
					}
				}
				done, waits := make(chan struct{}), make(chan []time.Duration)
				go func() { waits <- book(b, l, done) }()
				b.StartTimer()
				if err := l.Retain(b.Context(), ledgertest.Day.Add(c.age)); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				close(done)
				w := <-waits
				slices.Sort(w)
				b.ReportMetric(w[len(w)-1].Seconds()*1e3, "ms-longest-wait")
				b.ReportMetric(float64(len(w)), "bookings-meanwhile")
				b.StartTimer()
			}
		})
	}
}

func blob(dsn string) string {
	if len(dsn) > 8 && dsn[:8] == "postgres" {
		return "bytea"
	}
	return "blob"
}
