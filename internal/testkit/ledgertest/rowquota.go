package ledgertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// testRowQuota: a node adds a limited number of streams, batches, ranges of booked time and handovers
// in a day. Batches beyond it wait for the next day, which the audit log tells once; what follows
// booked time, and other nodes, are not affected.
func testRowQuota(t *testing.T, dsn string) {
	AfterMidnight()
	cfg := ledger.Default()
	cfg.Quota.Streams, cfg.Quota.Batches, cfg.Quota.Ranges, cfg.Quota.Handovers = 3, 8, 12, 5
	l := OpenWith(t, dsn, cfg)
	Node(t, l, "a")
	Node(t, l, "b")
	marks := map[byte]batch.Mark{}
	at := int64(0)
	send := func(node string, stream byte, change func(*batch.Entry)) error {
		t.Helper()
		mark, ok := marks[stream]
		if !ok {
			mark = batch.Mark{Next: 1}
		}
		e := Entry(node, batch.Stream{stream, node[0]}, mark, 1, 1, minuteOf(Day))
		if change != nil {
			change(e)
		}
		r, err := tryBook(t, l, e)
		if err != nil {
			t.Fatal(err)
		}
		if r[0].Err == nil && r[0].Verdict == batch.Accepted {
			marks[stream] = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		}
		return r[0].Err
	}
	waits := func(err error, why string) {
		t.Helper()
		after, ok := fault.RetryAfter(err)
		if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), why) || !ok || after > 24*time.Hour {
			t.Errorf("%v after %v, want one that waits for a day, of %s", err, after, why)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	count := func(query string) (n int64) {
		t.Helper()
		if err := DB(t, dsn).QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	lost := func(node string, stream byte) error {
		_, err := l.Lost(t.Context(), node, batch.Loss{Stream: batch.Stream{stream, node[0]}, From: 1, To: 3, Gap: usage.Gap{From: Day, To: Day.Add(time.Second), Reason: usage.Corrupt}}, time.Now())
		return err
	}
	measured := func(ms ...batch.Measured) func(*batch.Entry) {
		return func(e *batch.Entry) { e.Measured = ms }
	}
	follows := func(e *batch.Entry) {
		e.Measured = []batch.Measured{{Boot: "boot", Extent: usage.Extent{Scope: usage.Machine}, From: at, To: at + 10}}
		at += 10
	}
	must(send("a", 1, follows)) // a run and a range
	must(send("a", 2, nil))
	must(send("a", 3, nil))
	waits(send("a", 4, nil), "streams")
	waits(lost("a", 5), "streams")
	waits(send("a", 5, nil), "streams")
	must(send("a", 1, follows))

	// Each window has another scope or boot.
	var scopes, boots []batch.Measured
	for i := range 10 {
		scopes = append(scopes, batch.Measured{Boot: "boot", Extent: usage.Extent{Scope: usage.Scope(fmt.Sprint("cgroup:", i+1))}, From: 1, To: 2})
		boots = append(boots, batch.Measured{Boot: fmt.Sprint("boot", i), Extent: usage.Extent{Scope: usage.Machine}, From: 1, To: 2})
	}
	must(send("a", 1, measured(scopes...))) // 12 rows
	waits(send("a", 1, measured(boots...)), "booked time")
	waits(send("a", 1, func(e *batch.Entry) { e.Boots = []batch.BootPlace{{Boot: "x", New: true}} }), "booked time")
	must(send("a", 1, follows))
	if n := count("SELECT count(*) FROM kernel_run") + count("SELECT count(*) FROM booked"); n != 12 {
		t.Errorf("%d rows of booked time, want 12", n)
	}
	handovers := func(n int) func(*batch.Entry) {
		return func(e *batch.Entry) {
			for range n {
				e.Handovers = append(e.Handovers, batch.TimedHandover{From: Day, To: Day.Add(time.Second), Handover: usage.Handover{Guest: "00000000-0000-0000-0000-000000000001"}})
			}
		}
	}
	must(send("a", 1, handovers(4)))
	waits(send("a", 1, handovers(2)), "handovers")
	must(send("a", 1, nil)) // the eighth batch
	closeLedger(t, l)
	l = OpenWith(t, dsn, cfg)
	waits(send("a", 1, nil), "batches")
	must(lost("b", 1))
	marks = map[byte]batch.Mark{}
	must(send("b", 2, measured(boots[:3]...)))
	if n := count("SELECT count(*) FROM audit WHERE action = 'node.quota'"); n != 4 {
		t.Errorf("%d audit lines, want one for each quota", n)
	}
	if _, err := DB(t, dsn).ExecContext(t.Context(), "UPDATE node_quota SET day = day - 1"); err != nil {
		t.Fatal(err)
	}
	must(send("a", 7, measured(boots[4:]...)))

	// Rows that no node has used for as long as hours are kept are dropped, apart from the runs that
	// nodes measured last; streams a year later.
	if n := count("SELECT count(*) FROM stream"); n != 6 {
		t.Errorf("%d streams, want 6", n)
	}
	last := count("SELECT count(DISTINCT run) FROM node WHERE run > 0")
	if err := l.Retain(t.Context(), time.Now().Add(cfg.Hours+time.Hour)); err != nil {
		t.Fatal(err)
	}
	left := func(want int64, tables ...string) {
		t.Helper()
		for _, table := range tables {
			if n := count("SELECT count(*) FROM " + table); n != want {
				t.Errorf("%d rows are left in %s, want %d", n, table, want)
			}
		}
	}
	left(6, "stream")
	left(0, "batch", "booked", "placed_boot")
	if err := l.Retain(t.Context(), time.Now().Add(cfg.Hours+366*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	left(0, "stream")
	if n := count("SELECT count(*) FROM kernel_run"); n != last {
		t.Errorf("%d kernel runs are left, want the %d that nodes measured last", n, last)
	}
}
