package ledgertest

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testGroups: the groups of a day are summed in slices into one row each, and sums beyond
// 63 bits are correct from rows of any level.
func testGroups(t *testing.T, dsn string) {
	ctx := t.Context()
	cfg := ledger.Default()
	cfg.Slice = 1
	l, err := ledger.Open(ctx, dsn, cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer closeLedger(t, l)
	Node(t, l, "a")
	const large, workloads = 1<<57 - 1, 40
	m := minuteOf(Day)
	e := &batch.Entry{Node: "a", Stream: batch.Stream{1}, Number: 1, Hash: batch.Hash{1}, Through: Day.Add(time.Hour)}
	// The highest peak is neither first nor last, and the next one has a larger low half.
	peaks := []int64{7, 5<<32 + 1, 4<<32 + 9, 3}
	for i := range workloads {
		n := batch.Name{ID: workload.NewID("a", workload.Container, fmt.Sprint(i)), Kind: workload.Container, Name: "w"}
		n.Labels = map[string]string{"app": "x", "io.kubernetes.pod.namespace": "s"}
		e.Names = append(e.Names, n)
		short, _ := workload.ShortIDOf(n.ID)
		for _, at := range []int64{m + 1, m + 2, m + 600} {
			var u usage.Usage
			u.Put(usage.Memory, large, usage.Measured)
			u.Put(usage.MemoryPeak, peaks[i%len(peaks)], usage.Measured)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: at, Usage: u})
		}
	}
	book(t, l, batch.Accepted, e)
	want := new(big.Int).Mul(big.NewInt(large), big.NewInt(3*workloads)).String()
	check := func(when string) {
		t.Helper()
		for _, d := range []query.Dimension{query.ByNamespace, query.ByLabel + "app", query.ByNode} {
			a, err := l.Usage(ctx, query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{d}, Scope: query.Scope{All: true}})
			if err != nil || len(a.Groups) != 1 {
				t.Fatalf("%s: by %s: %v, %v", when, d, a, err)
			}
			g := &a.Groups[0]
			if g.Usage.Sum[usage.Memory].String() != want || g.Usage.Sum[usage.MemoryPeak].String() != fmt.Sprint(peaks[1]) || g.Nodes != 1 {
				t.Errorf("%s: by %s: memory %v, peak %v on %d nodes, want %v, %v on 1", when, d,
					g.Usage.Sum[usage.Memory], g.Usage.Sum[usage.MemoryPeak], g.Nodes, want, peaks[1])
			}
		}
	}
	check("minutes")
	for _, c := range []struct {
		scope query.Scope
		want  int64 // workloads with a namespace
	}{{query.Scope{All: true}, workloads}, {query.Scope{}, 0}, {query.Scope{Clusters: []string{"another"}}, 0}, {query.Scope{Projects: []string{"shop"}}, 0}} {
		list, err := l.Dimensions(ctx, c.scope)
		if err != nil || len(list) != len(query.OptionalDimensions) {
			t.Fatalf("%+v: dimensions %v, %v", c.scope, list, err)
		}
		for _, d := range list {
			if want := map[bool]int64{true: c.want}[d.Dimension == query.ByNamespace]; d.Workloads != want {
				t.Errorf("%+v: %d workloads have a %s, want %d", c.scope, d.Workloads, d.Dimension, want)
			}
		}
	}
	for _, age := range []time.Duration{12 * time.Hour, 25 * time.Hour} {
		fold(t, l, Day.Add(age))
		check(fmt.Sprintf("folded after %v", age))
	}
	if n := (reader{t, DB(t, dsn)}).number("SELECT count(*) FROM group_day"); n != 1 {
		t.Errorf("the group has %d rows", n)
	}
}
