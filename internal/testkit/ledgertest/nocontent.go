package ledgertest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// testNoContent books rows in which nothing was measured for less than half a millisecond: no answer may
// include them, whether it is read from minutes, hours, days or groups of days.
func testNoContent(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	minute := minuteOf(Day) + 60
	marks := map[string]batch.Mark{}
	send := func(node, key string, at int64, u usage.Usage) {
		t.Helper()
		name := batch.Name{ID: workload.NewID(node, workload.Job, key), Kind: workload.Job, Key: key, Name: key, User: "user-" + key}
		short, _ := workload.ShortIDOf(name.ID)
		mark := max(marks[node].Next, 1)
		e := &batch.Entry{
			Node: node, Stream: batch.Stream{node[0]}, Number: mark, Previous: marks[node].Last, Sent: fmt.Append(nil, node, mark), Boot: "boot",
			Through: time.Unix(60*(at+1), 0), Names: []batch.Name{name}, Minutes: []batch.Minute{{Workload: short, Minute: at, Usage: u}},
		}
		e.Hash = batch.HashOf(e.Sent)
		marks[node] = batch.Mark{Next: mark + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
	}
	check := func(when string) {
		t.Helper()
		for _, by := range []query.Dimension{query.ByCluster, query.ByKind, query.ByUser, query.ByNode, query.ByWorkload} {
			q := query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{by}, Scope: query.Scope{All: true}}
			a, err := l.Usage(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			nodes := map[string]int{}
			for _, g := range a.Groups {
				nodes[g.Keys[0]] = g.Nodes
			}
			want := map[query.Dimension]string{query.ByCluster: "c", query.ByKind: "job", query.ByUser: "user-used", query.ByNode: "name-a", query.ByWorkload: "used"}[by]
			if d := cmp.Diff(map[string]int{want: 1}, nodes); d != "" {
				t.Errorf("%s: nodes by %s (-want +got):\n%s", when, by, d)
			}
			list, err := l.Workloads(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			for _, w := range list {
				found[w.Name.Name] = true
			}
			if names := slices.Sorted(maps.Keys(found)); !slices.Equal(names, []string{"used"}) {
				t.Errorf("%s: workloads %q, want only the one with use", when, names)
			}
		}
	}
	for _, n := range []string{"a", "b"} {
		Node(t, l, n)
	}
	used := usage.Usage{Covered: time.Second}
	used.Put(usage.CPU, 5, usage.Measured)
	none := usage.Usage{Covered: 105 * time.Nanosecond}
	send("a", "used", minute, used)
	send("a", "none", minute, none)
	send("b", "none", minute, none)
	check("minutes")
	if err := l.Fold(ctx, Day.Add(48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	check("folded")
	send("b", "late", minute+1, none)
	if err := l.Fold(ctx, Day.Add(48*time.Hour)); err != nil { // stale days
		t.Fatal(err)
	}
	check("late")
}
