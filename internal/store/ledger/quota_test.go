package ledger_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// A node may add exactly the bytes of its quota: names first, then gaps, then shifts. Beyond it a
// name has no texts, one gap without a text covers all gaps of a batch, and shifts are left out. One audit
// line tells. The result names a workload without a name once.
func TestTextQuota(t *testing.T) {
	day := ledgertest.Day
	gap := func(from, to int, detail string) usage.Gap {
		return usage.Gap{From: day.Add(time.Duration(from) * time.Second), To: day.Add(time.Duration(to) * time.Second), Reason: usage.Overflow, Detail: detail}
	}
	const row = 128 // bytes of a gap or a shift beside its text
	const names, gaps, shift = 4, 3*row + 6, row + 1
	for _, c := range []struct {
		bytes int64
		want  string
	}{
		{names + gaps + 2*shift, "name nn, gaps 5-6 dd, 1-9 d, 3-4 ddd, 2 shifts, 0 lines"},
		{names + gaps + 2*shift - 1, "name nn, gaps 5-6 dd, 1-9 d, 3-4 ddd, 1 shifts, 1 lines"},
		{names + gaps + shift - 1, "name nn, gaps 5-6 dd, 1-9 d, 3-4 ddd, 0 shifts, 1 lines"},
		{names + gaps - 1, "name nn, gaps 1-9 , 2 shifts, 1 lines"},
		{names - 1, "name , gaps 1-9 , 0 shifts, 1 lines"},
	} {
		ledgertest.AfterMidnight()
		cfg := ledger.Default()
		cfg.Quota.Bytes = c.bytes
		dsn := ledgertest.SQLite(t)
		l := ledgertest.OpenWith(t, dsn, cfg)
		ledgertest.Node(t, l, "a")
		id := workload.NewID("a", workload.Job, "kk")
		short, _ := workload.ShortIDOf(id)
		minute := day.Unix() / 60
		e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, short, 5, minute)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: 7, Minute: minute}, batch.Minute{Workload: 7, Minute: minute + 1})
		e.Names = []batch.Name{{ID: id, Kind: workload.Job, Key: "kk", Name: "nn"}}
		e.Gaps = []usage.Gap{gap(5, 6, "dd"), gap(1, 9, "d"), gap(3, 4, "ddd")}
		e.Shifts = []batch.Shift{{Boot: "b", At: day, By: 1}, {Boot: "c", At: day, By: 2}}
		var results []batch.Result
		err := ledgertest.Try(t, func() (err error) {
			results, err = l.Book(t.Context(), []*batch.Entry{e})
			return err
		})
		if err != nil || results[0].Verdict != batch.Accepted {
			t.Fatal(results, err)
		}
		if n := len(results[0].Names); n != 1 {
			t.Errorf("%d bytes: asks for %d names, want the one of workload 7", c.bytes, n)
		}
		db := ledgertest.DB(t, dsn)
		var name string
		var shifts, lines int
		err = db.QueryRowContext(t.Context(), "SELECT (SELECT name FROM workload WHERE wid = $1), (SELECT count(*) FROM shift), (SELECT count(*) FROM audit WHERE action = 'node.quota')", string(id)).Scan(&name, &shifts, &lines)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		got.WriteString("name " + name + ", gaps ")
		rows, err := db.QueryContext(t.Context(), "SELECT from_ns, to_ns, detail FROM gap ORDER BY id")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var from, to int64
			var detail string
			if err := rows.Scan(&from, &to, &detail); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "%d-%d %s, ", (from-day.UnixNano())/1e9, (to-day.UnixNano())/1e9, detail)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%d shifts, %d lines", shifts, lines)
		if got.String() != c.want {
			t.Errorf("%d bytes: %s; want %s", c.bytes, got.String(), c.want)
		}
	}
}
