package read_test

import (
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestCoveredOfCenturies checks that the time covered by many workloads may exceed the 292 years
// that 63 bits hold in nanoseconds, and the 584 of 64 bits.
func TestCoveredOfCenturies(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	ledgertest.Node(t, l, "a")
	e := &batch.Entry{Node: "a", Stream: batch.Stream{1}, Number: 1, Boot: "b", Sent: []byte("1"), Through: ledgertest.Day.Add(time.Minute)}
	e.Hash = batch.HashOf(e.Sent)
	const century = 100 * 365 * 24 * time.Hour
	for i := range 10 {
		name := batch.Name{ID: workload.NewID("a", workload.Job, fmt.Sprint(i)), Kind: workload.Job, Name: "job"}
		short, _ := workload.ShortIDOf(name.ID)
		u := usage.Usage{Covered: century}
		u.Put(usage.CPU, 1, usage.Measured)
		e.Names = append(e.Names, name)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: ledgertest.Day.Unix() / 60, Usage: u})
	}
	if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	var want unit.Sum
	for range 10 {
		want = want.Add(int64(century))
	}
	check := func() {
		t.Helper()
		a, err := l.Usage(t.Context(), query.Query{From: ledgertest.Day, To: ledgertest.Day.Add(24 * time.Hour), By: []query.Dimension{query.ByCluster}, Scope: query.Scope{All: true}})
		if err != nil || len(a.Groups) != 1 || a.Groups[0].Usage.Covered != want {
			t.Errorf("%+v, %v; want %s ns covered", a, err, want)
		}
	}
	check()
	if err := l.Fold(t.Context(), ledgertest.Day.Add(48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	check()
}
