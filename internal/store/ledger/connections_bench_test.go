package ledger_test

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func BenchmarkConnectionsSQLite(b *testing.B)     { benchmarkConnections(b, ledgertest.SQLite) }
func BenchmarkConnectionsPostgreSQL(b *testing.B) { benchmarkConnections(b, ledgertest.PostgreSQL) }

// benchmarkConnections reads the connections of a week of 1000 workloads with 20 edges an hour each: the same in each hour, or others.
func benchmarkConnections(b *testing.B, dsn func(testing.TB) string) {
	for _, name := range []string{"same", "others"} {
		b.Run(name, func(b *testing.B) { benchmarkConnectionsOf(b, dsn(b), name == "others") })
	}
}

func benchmarkConnectionsOf(b *testing.B, dsn string, others bool) {
	const nodes, workloads, hours = 50, 20, 7 * 24
	l := ledgertest.Open(b, dsn)
	ids, marks := make([]string, nodes), make([]batch.Mark, nodes)
	for i := range ids {
		ids[i], marks[i] = "node"+string(rune('A'+i)), batch.Mark{Next: 1}
		ledgertest.Node(b, l, ids[i])
	}
	first, peers := ledgertest.Day.Unix()/60, uint32(0)
	for h := range int64(hours) {
		es := make([]*batch.Entry, nodes)
		for i := range es {
			e := ledgertest.Entry(ids[i], batch.Stream{byte(i)}, marks[i], 1, h, first+60*h)
			e.Minutes = nil
			for w := range workloads {
				name, s := testName(ids[i], w), &connection.Sketch{}
				short, _ := workload.ShortIDOf(name.ID)
				if h == 0 {
					e.Names = append(e.Names, name)
				}
				for k := range uint32(connection.Top) {
					if peers++; h > 0 && !others {
						peers = uint32(i*workloads+w)*connection.Top + k + 1
					}
					s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, peers))), Port: 443, Protocol: 6}, connection.Traffic{RxBytes: 1e6 + int64(k), RxPackets: 900})
				}
				u := usage.Usage{Covered: 10 * time.Second}
				u.Put(usage.NetworkRx, s.Sum().RxBytes, usage.Measured)
				u.Put(usage.NetworkRxPackets, s.Sum().RxPackets, usage.Measured)
				e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: first + 60*h, Usage: u})
				e.Connections = append(e.Connections, batch.Connections{Workload: short, Minute: first + 60*h, Sketch: s})
			}
			es[i], marks[i] = e, batch.Mark{Next: e.Number + 1, Last: e.Hash}
		}
		if _, err := l.Book(b.Context(), es); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Fold(b.Context(), ledgertest.Day.Add((hours+30)*time.Hour)); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		by    query.Dimension
		where map[query.Dimension][]string
	}{{"workload", query.ByWorkload, nil}, {"cluster", query.ByCluster, nil}, {"one", query.ByJob, map[query.Dimension][]string{query.ByNode: {ids[7]}}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			runtime.GC()
			var before, at runtime.MemStats
			runtime.ReadMemStats(&before)
			most, done, stopped := uint64(0), make(chan bool), make(chan bool)
			go func() {
				defer close(stopped)
				for {
					select {
					case <-done:
						return
					case <-time.After(20 * time.Millisecond):
						runtime.ReadMemStats(&at)
						most = max(most, at.HeapInuse)
					}
				}
			}()
			for b.Loop() {
				a, err := l.Connections(b.Context(), query.Query{From: ledgertest.Day, To: ledgertest.Day.Add(hours * time.Hour), By: []query.Dimension{c.by}, Scope: query.Scope{All: true}, Where: c.where, Limit: 100})
				if err != nil || len(a.Edges) == 0 && !others {
					b.Fatal(a, err)
				}
			}
			close(done)
			<-stopped
			b.ReportMetric(float64(most-min(most, before.HeapInuse))/1e6, "peak-MB")
		})
	}
}
