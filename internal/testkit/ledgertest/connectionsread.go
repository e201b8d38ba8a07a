package ledgertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// ofJob adds a job to the only workload of an entry.
func ofJob(e *batch.Entry, job, project string) *batch.Entry {
	n := batch.Name{ID: workload.NewID(e.Node, workload.Job, job), Kind: workload.Job, Key: job, Name: job, Job: job, Project: project}
	short, _ := workload.ShortIDOf(n.ID)
	e.Names, e.Minutes[0].Workload, e.Connections[0].Workload = []batch.Name{n}, short, short
	return e
}

// listed returns the edges of an answer, one a line, then the rest and what other edges may have had.
func listed(c *query.Connections) string {
	var b strings.Builder
	for i := range c.Edges {
		e := &c.Edges[i]
		fmt.Fprintf(&b, "%s %s:%d %t %d %d %d %d +%d\n", strings.Join(e.Keys, "/"), e.Peer, e.Port, e.Listens, e.RxBytes, e.TxBytes, e.RxPackets, e.TxPackets, e.Error)
	}
	rx, tx := c.Rest()
	fmt.Fprintf(&b, "rest %s %s, others %d, all %s %s %s\n", rx, tx, c.Missed, c.Traffic.Sum[usage.NetworkRx], c.Traffic.Sum[usage.NetworkTx], c.Traffic.Quality.Get(usage.NetworkRx))
	return b.String()
}

// testConnectionsRead: edges are summed by group, and what a scope, a filter or a limit leaves out is in no figure.
func testConnectionsRead(t *testing.T, dsn string) {
	c := &talkCase{T: t, l: Open(t, dsn), db: reader{t, DB(t, dsn)}}
	as := func(id, cluster string) {
		t.Helper()
		c.node, c.mark = id, batch.Mark{Next: 1}
		if err := c.l.PutNode(t.Context(), registry.Node{ID: id, Cluster: cluster, Name: "machine-" + id, MachineID: "machine-" + id, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	hour := minuteOf(Day)
	missed := func(s *connection.Sketch, bytes int64) *connection.Sketch { s.Missed = bytes; return s } // by edges that were left out
	as("first", "c1")
	book(t, c.l, batch.Accepted, ofJob(c.entry(hour+3, received(100, 1, 2)), "web", "p"), ofJob(c.entry(hour+61, missed(received(50, 2, 3), 40)), "web", "p"),
		ofJob(c.entry(hour+62, received(30, 1)), "db", "q"))
	as("second", "c2")
	book(t, c.l, batch.Accepted, ofJob(c.entry(hour+4, missed(received(7, 1), 9)), "web", "q"))
	plain := ofJob(c.entry(hour+4, &connection.Sketch{}), "old", "q") // without connections
	plain.Connections = nil
	plain.Minutes[0].Usage.Put(usage.NetworkRx, 1000, usage.Apportioned)
	book(t, c.l, batch.Accepted, plain)

	all, job := query.Scope{All: true}, []query.Dimension{query.ByJob}
	for _, when := range []string{"by minutes", "by hours", "by days"} {
		for _, q := range []struct {
			name string
			query.Query
			from, to int64 // minutes of the answer, of the day
			want     string
		}{
			{"all", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: all}, 0, 120, `web 10.0.0.2:443 true 150 2 4 6 +9
web 10.0.0.1:443 false 107 2 4 6 +40
web 10.0.0.3:443 false 50 1 2 3 +9
db 10.0.0.1:443 false 30 1 2 3 +0
rest 1049 0, others 49, all 1386 6 apportioned
`},
			{"by node and job", query.Query{To: Day.Add(2 * time.Hour), By: []query.Dimension{query.ByNode, query.ByJob}, Scope: all}, 0, 120, `machine-first/web 10.0.0.2:443 true 150 2 4 6 +0
machine-first/web 10.0.0.1:443 false 100 1 2 3 +40
machine-first/web 10.0.0.3:443 false 50 1 2 3 +0
machine-first/db 10.0.0.1:443 false 30 1 2 3 +0
machine-second/web 10.0.0.1:443 false 7 1 2 3 +0
rest 1049 0, others 40, all 1386 6 apportioned
`},
			{"limited", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: all, Limit: 1}, 0, 120, `web 10.0.0.2:443 true 150 2 4 6 +9
rest 1236 4, others 149, all 1386 6 apportioned
`},
			{"minutes of the second hour", query.Query{From: Day.Add(61 * time.Minute), To: Day.Add(62 * time.Minute), By: job, Scope: all}, 60, 120, `web 10.0.0.2:443 true 50 1 2 3 +0
web 10.0.0.3:443 false 50 1 2 3 +0
db 10.0.0.1:443 false 30 1 2 3 +0
rest 40 0, others 40, all 170 3 measured
`},
			{"a job", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: all, Where: map[query.Dimension][]string{query.ByJob: {"db"}}}, 0, 120, `db 10.0.0.1:443 false 30 1 2 3 +0
rest 0 0, others 0, all 30 1 measured
`},
			{"a cluster", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: query.Scope{Clusters: []string{"c1"}}}, 0, 120, `web 10.0.0.2:443 true 150 2 4 6 +0
web 10.0.0.1:443 false 100 1 2 3 +40
web 10.0.0.3:443 false 50 1 2 3 +0
db 10.0.0.1:443 false 30 1 2 3 +0
rest 40 0, others 40, all 370 5 measured
`},
			{"a project", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: query.Scope{Projects: []string{"p"}}}, 0, 120, `web 10.0.0.2:443 true 150 2 4 6 +0
web 10.0.0.1:443 false 100 1 2 3 +40
web 10.0.0.3:443 false 50 1 2 3 +0
rest 40 0, others 40, all 340 4 measured
`},
			{"a project of a cluster without it", query.Query{To: Day.Add(2 * time.Hour), By: job, Scope: query.Scope{Clusters: []string{"c2"}, Projects: []string{"p"}}}, 0, 120, "rest 0 0, others 0, all 0 0 absent\n"},
			{"nothing", query.Query{To: Day.Add(2 * time.Hour), By: job}, 0, 120, "rest 0 0, others 0, all 0 0 absent\n"},
			{"another day", query.Query{From: Day.Add(-3 * time.Hour), To: Day.Add(-time.Hour), By: job, Scope: all}, -180, -60, "rest 0 0, others 0, all 0 0 absent\n"},
		} {
			if q.From.IsZero() {
				q.From = Day
			}
			got, err := c.l.Connections(t.Context(), q.Query)
			if err != nil {
				t.Fatalf("%s, %s: %v", q.name, when, err)
			}
			if d := cmp.Diff(q.want, listed(got)); d != "" {
				t.Errorf("%s, %s (-want +got):\n%s", q.name, when, d)
			}
			if minuteOf(got.From) != hour+q.from || minuteOf(got.To) != hour+q.to {
				t.Errorf("%s, %s: from %v to %v", q.name, when, got.From, got.To)
			}
		}
		if _, err := c.l.Connections(t.Context(), query.Query{From: Day, To: Day.Add(time.Hour), By: []query.Dimension{"nothing"}, Scope: all}); err == nil {
			t.Error("an unknown dimension is taken")
		}
		fold(t, c.l, map[string]time.Time{"by minutes": Day.Add(4 * time.Hour), "by hours": Day.Add(50 * time.Hour)}[when])
	}
}

// testConnectionsWithin: connections of a guest count as its rows do. Those of an hour of which only some rows count are in the
// rest.
func testConnectionsWithin(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	at := func(d time.Duration) time.Time { return Day.Add(d) }
	talks := func(e *batch.Entry, bytes int64, peers ...byte) *batch.Entry {
		c := received(bytes, peers...)
		row := &e.Minutes[len(e.Minutes)-1]
		row.Usage.Put(usage.NetworkRx, c.Sum().RxBytes, usage.Measured)
		row.Usage.Put(usage.NetworkTx, c.Sum().TxBytes, usage.Measured)
		e.Connections = []batch.Connections{{Workload: row.Workload, Minute: row.Minute - row.Minute%batch.Quarter, Sketch: c}}
		return e
	}
	// At 1 no host meters the guest; at 12 one does, but not in the minute before; at 13 one does, and at 14 another one.
	s.book(talks(s.window("guest", at(time.Hour), 10), 1000, 1))
	s.book(talks(s.window("guest", at(12*time.Hour+5*time.Minute), 10), 50, 1))
	s.book(talks(s.window("guest", at(12*time.Hour+10*time.Minute), 10, handover(at(12*time.Hour+10*time.Minute), "", "e", 0, 3)), 100, 2))
	s.book(talks(s.window("host", at(12*time.Hour+10*time.Minute), 10, handover(at(12*time.Hour+10*time.Minute), vm("host"), "e", 0, 1, 2, 3)), 5, 3))
	s.book(talks(s.window("guest", at(13*time.Hour+10*time.Minute), 10, handover(at(13*time.Hour+10*time.Minute), "", "e", 0, 6)), 7000, 4))
	s.book(s.window("host", at(13*time.Hour+10*time.Minute), 10, handover(at(13*time.Hour+10*time.Minute), vm("host"), "e", 0, 4, 5, 6)))
	s.book(talks(s.window("guest", at(14*time.Hour+10*time.Minute), 10, handover(at(14*time.Hour+10*time.Minute), "", "f", 0, 2)), 300, 5))
	s.book(s.window("other", at(14*time.Hour+10*time.Minute), 10, handover(at(14*time.Hour+10*time.Minute), vm("other"), "f", 0, 1, 2)))
	for _, when := range []string{"by minutes", "by hours", "by days"} {
		for _, c := range []struct{ nodes, want string }{
			{"host other guest", `name-guest 10.0.0.1:443 false 1000 1 2 3 +51
name-host 10.0.0.3:443 false 5 1 2 3 +0
rest 50 1, others 51, all 1055 3 measured
`},
			{"host guest", `name-guest 10.0.0.1:443 false 1000 1 2 3 +51
name-guest 10.0.0.5:443 false 300 1 2 3 +51
name-host 10.0.0.3:443 false 5 1 2 3 +0
rest 50 1, others 51, all 1355 4 measured
`},
			{"guest", `name-guest 10.0.0.4:443 true 7000 1 2 3 +0
name-guest 10.0.0.1:443 false 1050 2 4 6 +0
name-guest 10.0.0.5:443 false 300 1 2 3 +0
name-guest 10.0.0.2:443 true 100 1 2 3 +0
rest 0 0, others 0, all 8450 5 measured
`},
			{"host other", `name-host 10.0.0.3:443 false 5 1 2 3 +0
rest 0 0, others 0, all 5 1 measured
`},
		} {
			got, err := s.l.Connections(t.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByNode}, Scope: query.Scope{All: true},
				Where: map[query.Dimension][]string{query.ByNode: strings.Fields(c.nodes)}})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, listed(got)); d != "" {
				t.Errorf("%s, %s (-want +got):\n%s", c.nodes, when, d)
			}
		}
		fold(t, s.l, map[string]time.Time{"by minutes": at(16 * time.Hour), "by hours": at(50 * time.Hour)}[when])
	}
}

// checkEdges checks that the edges of each group have what its rows received, but for hours that are dropped.
func (r *versionRound) checkEdges(when string, by []query.Dimension) {
	r.Helper()
	from := r.day + rapid.Int64Range(-1, 100).Draw(r.T, "first hour")*hourMinutes
	q := query.Query{From: time.Unix(from*60, 0), To: time.Unix((from+rapid.Int64Range(1, 80).Draw(r.T, "hours")*hourMinutes)*60, 0), By: by,
		Where: map[query.Dimension][]string{query.ByCluster: {r.cluster}}, Scope: query.Scope{All: true}}
	c, err := r.l.Connections(context.Background(), q)
	if err != nil {
		r.Fatal(err)
	}
	a, err := r.l.Usage(context.Background(), q)
	if err != nil {
		r.Fatal(err)
	}
	got, want := map[string]int64{}, map[string]int64{}
	for i := range c.Edges {
		got[strings.Join(c.Edges[i].Keys, "|")] += c.Edges[i].RxBytes
	}
	all := int64(0)
	for i := range a.Groups {
		if n := a.Groups[i].Usage.Sum[usage.NetworkRx].Int64(); n > 0 {
			want[strings.Join(a.Groups[i].Keys, "|")] = n
			all += n
		}
	}
	if when == "dropped" {
		for k, n := range got {
			if n > want[k] {
				r.Fatalf("by %v from %v to %v: the edges of %s have %d of %d bytes", by, c.From, c.To, k, n, want[k])
			}
		}
		return
	}
	if d := cmp.Diff(want, got); d != "" || c.Traffic.Sum[usage.NetworkRx].Int64() != all || !c.From.Equal(a.From) || !c.To.Equal(a.To) {
		r.Fatalf("%s: by %v from %v to %v, %v (-want +got):\n%s", when, by, c.From, c.To, c.Traffic.Sum[usage.NetworkRx], d)
	}
}
