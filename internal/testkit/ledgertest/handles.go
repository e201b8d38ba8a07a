package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// testSchema: a schema of an older program is completed, that of a newer one is refused.
func testSchema(t *testing.T, dsn string) {
	ctx := context.Background()
	db := DB(t, dsn)
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	e := Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, m)
	e.Minutes[0].Usage.Put(usage.PressureIO, 4, usage.Modelled)
	book(t, l, batch.Accepted, e)
	epoch := l.Epoch()
	closeLedger(t, l)
	do := func(statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := db.ExecContext(ctx, s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	// As created by a program that does not know pressure_io.
	for _, tab := range []string{table("", m), table("node_", m), "hour", "node_hour", "day", "node_day"} {
		do("ALTER TABLE " + tab + " DROP COLUMN pressure_io")
	}
	do("ALTER TABLE group_day DROP COLUMN pressure_io_hi", "ALTER TABLE group_day DROP COLUMN pressure_io_lo",
		fmt.Sprintf("UPDATE %s SET present = 2, rough = 0", table("", m)))
	l = Open(t, dsn)
	if l.Epoch() != epoch || epoch == "" {
		t.Errorf("epoch is %q, was %q", l.Epoch(), epoch)
	}
	next := Entry("a", batch.Stream{1}, batch.Mark{Next: 2, Last: e.Hash}, 1, 10, m)
	next.Minutes[0].Usage.Put(usage.PressureIO, 6, usage.Measured)
	book(t, l, batch.Accepted, next)
	fold(t, l, Day.Add(25*time.Hour))
	if got := (reader{t, db}).usage("day")[rowKey{"a", 1, m}]; got.Amount[usage.PressureIO] != 6 || got.Amount[usage.CPU] != 20 {
		t.Errorf("the day is %v", got)
	}
	closeLedger(t, l)
	refused := func(why string) {
		t.Helper()
		_, err := ledger.Open(ctx, dsn, ledger.Default(), quiet)
		if !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, hint %q", why, err, fault.Hint(err))
		}
	}
	do("ALTER TABLE hour ADD COLUMN gpu integer")
	refused("a column of a newer program")
	do("ALTER TABLE hour DROP COLUMN gpu", "UPDATE meta SET value = '1000' WHERE key = 'ledger.schema'")
	refused("a schema of a newer program")
}

// retry makes a call until it returns anything but fault.ErrUnavailable. SQLite lets a handle wait for another one in
// no order, and for a limited time.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, fault.ErrUnavailable) {
			return err
		}
	}
}

// testConcurrent: several goroutines write, fold and read through two handles.
func testConcurrent(t *testing.T, dsn string) {
	ctx := t.Context()
	cfg := ledger.Default()
	cfg.Slice = 1
	ls := []*ledger.Ledger{OpenWith(t, dsn, cfg), OpenWith(t, dsn, cfg)}
	const writers, batches = 6, 10
	m := minuteOf(Day)
	for i := range writers {
		Node(t, ls[0], fmt.Sprint("n", i))
	}
	var wait sync.WaitGroup
	for i := range writers {
		wait.Go(func() {
			mark := batch.Mark{Next: 1}
			for j := range int64(batches) {
				e := Entry(fmt.Sprint("n", i), batch.Stream{byte(i)}, mark, 1, 10, m+17*j, m+17*j+1)
				var results []batch.Result
				err := retry(func() (err error) {
					results, err = ls[i%2].Book(ctx, []*batch.Entry{e})
					return err
				})
				if err != nil || results[0].Verdict != batch.Accepted {
					t.Errorf("booking: %v, %v", results, err)
					return
				}
				mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
			}
		})
	}
	for i := range 2 {
		wait.Go(func() {
			for j := range 8 {
				if err := retry(func() error { return ls[i].Fold(ctx, Day.Add(time.Duration(j+1)*4*time.Hour)) }); err != nil {
					t.Errorf("folding: %v", err)
				}
			}
		})
	}
	wait.Wait()
	var total int64
	for _, u := range (reader{t, DB(t, dsn)}).usage("day") {
		total += u.Amount[usage.CPU]
	}
	if total != writers*batches*2*10 {
		t.Errorf("the day has %d, want %d", total, writers*batches*2*10)
	}
	// Two that sum the groups of a day conflict, but do no harm.
	mark := batch.Mark{Next: 1}
	for range 5 {
		e := Entry("n0", batch.Stream{100}, mark, 1, 10, m)
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, ls[0], batch.Accepted, e)
		total += 10
		for _, l := range ls {
			wait.Go(func() {
				if err := retry(func() error { return l.Fold(ctx, Day) }); err != nil {
					t.Errorf("folding: %v", err)
				}
			})
		}
		wait.Wait()
		if diff := cmp.Diff(map[group]int64{{"", m}: total}, (reader{t, DB(t, dsn)}).groups()); diff != "" {
			t.Errorf("groups (-want +got):\n%s", diff)
		}
	}
}
