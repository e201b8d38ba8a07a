package ledger_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func BenchmarkBookSQLite(b *testing.B)     { benchmarkBooks(b, ledgertest.SQLite) }
func BenchmarkBookPostgreSQL(b *testing.B) { benchmarkBooks(b, ledgertest.PostgreSQL) }

func benchmarkBooks(b *testing.B, dsn func(testing.TB) string) {
	for _, edges := range []int{0, connection.Top} {
		b.Run(fmt.Sprintf("edges=%d", edges), func(b *testing.B) { benchmarkBook(b, dsn(b), edges) })
	}
}

// benchmarkBook books windows of 10 s of 50 nodes with 20 workloads each, with all resources, and a number of edges of
// connections for each workload. CPU time is that of this process, which for PostgreSQL is only the client.
func benchmarkBook(b *testing.B, dsn string, edges int) {
	const nodes, workloads = 50, 20
	l := ledgertest.Open(b, dsn)
	ids := make([]string, nodes)
	marks := make([]batch.Mark, nodes)
	for i := range ids {
		ids[i], marks[i] = "node"+string(rune('A'+i)), batch.Mark{Next: 1}
		ledgertest.Node(b, l, ids[i])
	}
	minute := ledgertest.Day.Unix() / 60
	talk := &connection.Sketch{}
	for i := range edges {
		talk.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 1, byte(i), 7}), Port: 443, Protocol: 6, Class: 2}, connection.Traffic{RxBytes: 1e6, TxBytes: 1e5, RxPackets: 900, TxPackets: 400})
	}
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
				m := minute + int64(n)/6
				e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m, Usage: u})
				if edges > 0 {
					e.Connections = append(e.Connections, batch.Connections{Workload: short, Minute: m - m%batch.Quarter, Sketch: talk})
				}
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
