package fold_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestDropSQLite(t *testing.T)     { testDrop(t, ledgertest.SQLite(t)) }
func TestDropPostgreSQL(t *testing.T) { testDrop(t, ledgertest.PostgreSQL(t)) }

// week books and folds a row on each of seven days.
func week(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	ledgertest.Node(t, l, "a")
	var minutes []int64
	for day := range int64(7) {
		minutes = append(minutes, ledgertest.Day.Unix()/60+day*24*60)
	}
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, minutes...)
	if _, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil {
		t.Fatal(err)
	}
	if err := l.Fold(t.Context(), ledgertest.Day.Add(8*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
}

// testDrop checks that a reader finds the days of its snapshot, however long it takes, and blocks
// no writer.
func testDrop(t *testing.T, dsn string) {
	ctx := t.Context()
	l := ledgertest.Open(t, dsn)
	week(t, l)
	later := ledgertest.Day.Add(9*24*time.Hour + time.Hour) // two days exceed the age limit
	if err := l.Exec(ctx, "UPDATE batch SET taken_ns = 0"); err != nil {
		t.Fatal(err)
	}
	err := l.Reading(ctx, func(count func(string) (int64, error)) error {
		err := l.Retain(ctx, later)
		if postgres := strings.HasPrefix(dsn, "postgres"); postgres != errors.Is(err, fault.ErrUnavailable) || !postgres && err != nil {
			t.Errorf("dropping days that are read: %v", err)
		}
		// Others can read and book before this reader is done.
		if err := l.SetMeta(ctx, "k", "v"); err != nil {
			t.Errorf("booking: %v", err)
		}
		if _, err := l.Usage(ctx, everything()); err != nil {
			t.Errorf("another reader: %v", err)
		}
		for _, table := range []string{"minute_20260301", "node_minute_20260302"} {
			if _, err := count(table); err != nil {
				t.Errorf("%s: %v", table, err)
			}
		}
		n, err := count("kept")
		if err != nil || n != 7 {
			t.Errorf("%d days, %v; want 7", n, err)
		}
		// Only what is read waits for the reader.
		if err := l.Reading(ctx, func(count func(string) (int64, error)) error {
			n, err := count("batch")
			if n != 0 {
				t.Errorf("%d old batches are kept", n)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Retain(ctx, later); err != nil {
		t.Errorf("dropping days that are not read: %v", err)
	}
	err = l.Reading(ctx, func(count func(string) (int64, error)) error {
		n, err := count("kept")
		if err != nil || n != 5 {
			t.Errorf("%d days, %v; want 5", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFloorSQLite(t *testing.T)     { testFloor(t, ledgertest.SQLite(t)) }
func TestFloorPostgreSQL(t *testing.T) { testFloor(t, ledgertest.PostgreSQL(t)) }

// testFloor checks that days too old for minutes have no tables of minutes, whether there were any
// before or not, and that their use is booked nevertheless.
func testFloor(t *testing.T, dsn string) {
	l := ledgertest.Open(t, dsn)
	ledgertest.Node(t, l, "a")
	now := ledgertest.Day.Add(100 * 24 * time.Hour)
	if err := errors.Join(l.Fold(t.Context(), now), l.Retain(t.Context(), now)); err != nil {
		t.Fatal(err)
	}
	var minutes []int64
	for day := range int64(96) {
		minutes = append(minutes, ledgertest.Day.Unix()/60+day*24*60)
	}
	if _, err := l.Book(t.Context(), []*batch.Entry{ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, minutes...)}); err != nil {
		t.Fatal(err)
	}
	err := l.Reading(t.Context(), func(count func(string) (int64, error)) error {
		n, err := count("kept")
		if err != nil || n != 3 { // of the days 93 to 95
			t.Errorf("%d days have minutes, %v; want 3", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	q := everything()
	q.To = now
	q.From = ledgertest.Day
	a, err := l.Usage(t.Context(), q)
	if err != nil || len(a.Groups) != 1 || a.Groups[0].Usage.Sum[usage.CPU] != (unit.Sum{}).Add(960) {
		t.Errorf("%+v, %v; want 960 ns of CPU time", a, err)
	}
}

func everything() query.Query {
	return query.Query{From: ledgertest.Day.Add(time.Minute), To: ledgertest.Day.Add(7*24*time.Hour - time.Minute),
		By: []query.Dimension{query.ByNode}, Scope: query.Scope{All: true}}
}

func TestDropsSQLite(t *testing.T)     { testDrops(t, ledgertest.SQLite(t)) }
func TestDropsPostgreSQL(t *testing.T) { testDrops(t, ledgertest.PostgreSQL(t)) }

// testDrops checks that no reader sees an error while one day after another is dropped.
func testDrops(t *testing.T, dsn string) {
	l := ledgertest.Open(t, dsn)
	week(t, l)
	var readers sync.WaitGroup
	done, asked := make(chan struct{}), make(chan struct{}, 3)
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := l.Usage(t.Context(), everything())
				if err != nil || len(a.Groups) != 1 {
					t.Errorf("usage: %v, %v", a, err)
				}
				select {
				case asked <- struct{}{}:
				case <-done:
				}
			}
		})
	}
	for day := range 7 {
		for range 3 { // concurrent readers
			<-asked
		}
		now := ledgertest.Day.Add(time.Duration(8+day)*24*time.Hour + time.Hour)
		for err := l.Retain(t.Context(), now); err != nil; err = l.Retain(t.Context(), now) {
			if !errors.Is(err, fault.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	close(done)
	readers.Wait()
}

func TestDeleteSlicesSQLite(t *testing.T)     { testDeleteSlices(t, ledgertest.SQLite(t)) }
func TestDeleteSlicesPostgreSQL(t *testing.T) { testDeleteSlices(t, ledgertest.PostgreSQL(t)) }

// testDeleteSlices checks that old rows are deleted in small transactions, and completely.
func testDeleteSlices(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Slice = 4
	l, err := ledger.Open(t.Context(), dsn, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ledgertest.Node(t, l, "a")
	const workloads = 40
	for i := range workloads {
		e := ledgertest.Entry("a", batch.Stream{byte(i + 1)}, batch.Mark{Next: 1}, workload.ShortID(i+1), 10, ledgertest.Day.Unix()/60)
		if _, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Fold(t.Context(), ledgertest.Day.Add(8*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	left := func() (n int64) {
		err := l.Reading(t.Context(), func(count func(string) (int64, error)) error {
			hours, err := count("hour")
			batches, err2 := count("batch")
			n = hours + batches
			return errors.Join(err, err2)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	revs := func() int64 {
		s, err := l.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Rev
	}
	if n := left(); n != 2*workloads {
		t.Fatalf("%d hours and batches, want %d", n, 2*workloads)
	}
	if err := l.Exec(t.Context(), "UPDATE batch SET taken_ns = taken_ns / 1000"); err != nil {
		t.Fatal(err)
	}
	before := revs()
	for err = l.Retain(t.Context(), ledgertest.Day.Add(800*24*time.Hour)); errors.Is(err, fault.ErrUnavailable); {
		err = l.Retain(t.Context(), ledgertest.Day.Add(800*24*time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	// Each transaction deletes at most five rows of hours or batches.
	if n := revs() - before; n < 2*workloads/5 {
		t.Errorf("%d transactions, want %d at least", n, 2*workloads/5)
	}
	if n := left(); n != 0 {
		t.Errorf("%d hours and batches are left", n)
	}
}
