package ledger_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func BenchmarkBookSQLite(b *testing.B)     { benchmarkBook(b, ledgertest.SQLite(b)) }
func BenchmarkBookPostgreSQL(b *testing.B) { benchmarkBook(b, ledgertest.PostgreSQL(b)) }

// benchmarkBook books windows of 10 s of 50 nodes with 20 workloads each, with all resources. CPU
// time is that of this process, which for PostgreSQL is only the client.
func benchmarkBook(b *testing.B, dsn string) {
	const nodes, workloads = 50, 20
	l := ledgertest.Open(b, dsn)
	ids := make([]string, nodes)
	marks := make([]batch.Mark, nodes)
	for i := range ids {
		ids[i], marks[i] = "node"+string(rune('A'+i)), batch.Mark{Next: 1}
		ledgertest.Node(b, l, ids[i])
	}
	minute := ledgertest.Day.Unix() / 60
	es := make([]*batch.Entry, nodes)
	prepare := func(n int) {
		for i := range es {
			e := ledgertest.Entry(ids[i], batch.Stream{byte(i)}, marks[i], 1, int64(n), minute)
			e.Minutes = nil
			for w := range workloads {
				short, _ := workload.ShortIDOf(testName(ids[i], w).ID)
				u := usage.Usage{Covered: 10 * time.Second}
				for r := usage.Resource(1); r < usage.Limit; r++ {
					u.Put(r, int64(n)*1e6+int64(r), usage.Measured)
				}
				e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute + int64(n)/6, Usage: u})
			}
			if n == 0 {
				for w := range workloads {
					e.Names = append(e.Names, testName(ids[i], w))
				}
			}
			e.Nodes = []batch.NodeMinute{{Minute: minute + int64(n)/6, Covered: 10 * time.Second, CPUs: 4}}
			es[i], marks[i] = e, batch.Mark{Next: e.Number + 1, Last: e.Hash}
		}
	}
	var spent time.Duration
	n := 0
	for b.Loop() {
		b.StopTimer()
		prepare(n)
		n++
		before := cpu(b)
		b.StartTimer()
		if _, err := l.Book(b.Context(), es); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		spent += cpu(b) - before
		b.StartTimer()
	}
	rows := float64(n * nodes * workloads)
	b.ReportMetric(rows/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(spent.Seconds()*1e6/rows, "cpu-us/row")
}

func testName(node string, n int) batch.Name {
	key := strconv.Itoa(n)
	return batch.Name{ID: workload.NewID(node, workload.Job, key), Kind: workload.Job, Key: key}
}

// cpu returns the CPU time of the process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
