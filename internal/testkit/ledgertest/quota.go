package ledgertest

import (
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testQuota: a node adds a limited number of workloads and bytes of text in a day, also across restarts
// of the server; beyond that all of its amounts are booked, and another node has its own quota.
func testQuota(t *testing.T, dsn string) {
	AfterMidnight()
	cfg := ledger.Default()
	cfg.Quota.Workloads, cfg.Quota.Bytes = 20, 5000
	l := OpenWith(t, dsn, cfg)
	Node(t, l, "a")
	Node(t, l, "b")
	s, m := batch.Stream{1}, minuteOf(Day)
	mark := batch.Mark{Next: 1}
	sent := int64(0)
	var asked []workload.ShortID
	send := func(node string, first, last int, label string) {
		t.Helper()
		e := Entry(node, s, mark, 0, 0)
		for i := first; i < last; i++ {
			id := workload.NewID(node, workload.Job, string(rune('A'+i)))
			short, _ := workload.ShortIDOf(id)
			u := usage.Usage{Covered: 10 * time.Second}
			u.Put(usage.CPU, int64(1+i), usage.Measured)
			sent += int64(1 + i)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m, Usage: u})
			e.Names = append(e.Names, batch.Name{ID: id, Kind: workload.Job, Key: "k", Name: "n", Labels: map[string]string{"l": label}})
		}
		e.Gaps = []usage.Gap{{From: Day.Add(time.Duration(first) * time.Second), To: Day.Add(time.Duration(first+1) * time.Second), Reason: usage.Overflow, Detail: label},
			{From: Day.Add(time.Duration(first+20) * time.Second), To: Day.Add(time.Duration(first+21) * time.Second), Reason: usage.Overflow, Detail: label}}
		e.Hash[0]++
		asked = book(t, l, batch.Accepted, e)[0].Names
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	}
	count := func(query string) (n int64) {
		t.Helper()
		if err := DB(t, dsn).QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	send("a", 0, 10, "x")
	send("a", 10, 15, strings.Repeat("y", 4000)) // beyond the bytes
	if n := count("SELECT count(*) FROM workload WHERE name = 'n'"); n < 10 || n > 15 {
		t.Errorf("%d workloads have their name", n)
	}
	closeLedger(t, l)
	l = OpenWith(t, dsn, cfg)
	send("a", 15, 40, strings.Repeat("z", 1000)) // beyond the workloads
	if len(asked) > 0 {
		t.Errorf("asks for names of %v, which it does not keep", asked)
	}
	send("a", 35, 45, "z")
	if n := count("SELECT count(*) FROM workload"); n != 21 {
		t.Errorf("%d workloads, want 20 and the one of all others", n)
	}
	if n := count("SELECT count(*) FROM workload WHERE wid <> ''"); n != 21 {
		t.Errorf("%d workloads have an id, want 21", n)
	}
	if n := count("SELECT COALESCE(sum(length(key) + length(value)), 0) FROM workload_label") + count("SELECT sum(length(detail)) FROM gap"); n > 5000 {
		t.Errorf("%d bytes of labels and gaps", n)
	}
	if n := count("SELECT sum(cpu) FROM minute_" + Day.Format("20060102")); n != sent {
		t.Errorf("%d ns are booked, want %d", n, sent)
	}
	if n := count("SELECT count(*) FROM audit WHERE action = 'node.quota'"); n != 2 {
		t.Errorf("%d audit lines, want one for workloads and one for bytes", n)
	}
	s, mark = batch.Stream{2}, batch.Mark{Next: 1}
	send("b", 0, 10, "x")
	if n := count("SELECT count(*) FROM workload WHERE name = 'over quota'"); n != 1 {
		t.Errorf("%d nodes are over their quota, want 1", n)
	}
	// The next day has a quota of its own.
	if _, err := DB(t, dsn).ExecContext(t.Context(), "UPDATE node_quota SET day = day - 1"); err != nil {
		t.Fatal(err)
	}
	s, mark = batch.Stream{3}, batch.Mark{Next: 1}
	send("a", 40, 45, "x")
	if n := count("SELECT count(*) FROM workload"); n != 21+10+5 {
		t.Errorf("%d workloads after a day, want 36", n)
	}
}
