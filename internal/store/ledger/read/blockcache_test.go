package read_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// A booker books random rows of three nodes.
type booker struct {
	*testing.T
	*rand.Rand
	l     *ledger.Ledger
	marks [3]batch.Mark
}

// book books rows of a minute, some of workloads that get another name.
func (b *booker) book(minute int64) {
	b.Helper()
	n := b.IntN(len(b.marks))
	node := fmt.Sprint("n", n)
	e := ledgertest.Entry(node, batch.Stream{byte(n)}, b.marks[n], 1, 1, minute)
	b.marks[n] = batch.Mark{Next: e.Number + 1, Last: e.Hash}
	e.Minutes = nil
	for w := range 1 + b.IntN(4) {
		name := workloadName(node, w)
		if name.Job = fmt.Sprint("job", w%3); b.IntN(10) == 0 {
			name.Job = fmt.Sprint("job", b.IntN(5))
		}
		short, _ := workload.ShortIDOf(name.ID)
		e.Names = append(e.Names, name)
		u := usage.Usage{Covered: 10 * time.Second}
		usage.All.Each(func(r usage.Resource) {
			if b.IntN(3) > 0 {
				u.Put(r, b.Int64N(1<<40), []usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled}[b.IntN(3)])
			}
		})
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
	}
	nm := batch.NodeMinute{Minute: minute, Covered: 10 * time.Second, CPUs: n}
	for i := range nm.Whole {
		nm.Whole[i], nm.Skew[i] = b.Int64N(1<<40)+1<<41, b.Int64N(1<<40)-1<<39
	}
	e.Nodes = []batch.NodeMinute{nm}
	if r, err := b.l.Book(b.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		b.Fatal(r, err)
	}
}

// workloadName returns the name of a workload of a node.
func workloadName(node string, n int) batch.Name {
	key := strconv.Itoa(n)
	return batch.Name{ID: workload.NewID(node, workload.Job, key), Kind: workload.Job, Key: key}
}

// randomQuery returns a random query about a time before a minute.
func (b *booker) randomQuery(minute int64) query.Query {
	by := [][]query.Dimension{{query.ByKind}, {query.ByJob, query.ByKind}, {query.ByJob}, {query.ByWorkload, query.ByNode}, {query.ByNode}}
	q := query.Query{By: by[b.IntN(len(by))], Scope: query.Scope{All: true}}
	long := []int64{70, 10 * 60, 3 * 1440}[b.IntN(3)]
	from := minute - b.Int64N(long)
	q.From, q.To = time.Unix(from*60, 0), time.Unix((from+1+b.Int64N(minute-from+1))*60, 0)
	if b.IntN(3) == 0 {
		q.Where = map[query.Dimension][]string{query.ByJob: {"job0", "job4"}}
	}
	if b.IntN(3) == 0 {
		q.Resources = usage.SetOf(usage.Memory, usage.EnergyPackage)
	}
	if b.IntN(4) == 0 {
		q.Idle = "equal"
	}
	return q
}

// TestBlockCache checks that cached blocks change no answer, whatever is booked, folded and renamed
// meanwhile, by this process or another.
func TestBlockCache(t *testing.T) {
	if all, several, hits := checkBlockCache(t, 1, rounds); several == 0 || hits < rounds/2 {
		t.Errorf("%d blocks cached, %d of them of several rows, %d hits", all, several, hits)
	}
}

// TestBlockCacheDrawn is TestBlockCache for many histories.
func TestBlockCacheDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "draws many histories")
	for range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { checkBlockCache(t, seed, 120) })
	}
}

func checkBlockCache(t *testing.T, seed uint64, rounds int) (all, several int, hits int64) {
	t.Helper()
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	l.SetMinQuiet(0) // cache immediately
	db := ledgertest.DB(t, dsn)
	b := &booker{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), l: l}
	for i := range b.marks {
		ledgertest.Node(t, l, fmt.Sprint("n", i))
		b.marks[i] = batch.Mark{Next: 1}
	}
	first := ledgertest.Day.Unix() / 60
	now := first + 2*1440
	for m := first; m < now; m += 1 + b.Int64N(40) {
		b.book(m)
	}
	sums := cmp.Comparer(func(a, b unit.Sum) bool { return a == b })
	for range rounds {
		for range b.IntN(3) {
			now += b.Int64N(3)
			b.book(now)
		}
		switch b.IntN(12) {
		case 0: // late
			b.book(first + b.Int64N(now-first))
		case 1:
			if err := l.Fold(t.Context(), time.Unix(now*60, 0)); err != nil {
				t.Fatal(err)
			}
		case 2:
			now += b.Int64N(90)
		case 3:
			l.SetMinQuiet([]time.Duration{0, time.Hour}[b.IntN(2)])
		case 4: // another process
			other, err := ledger.Open(context.Background(), dsn, ledger.Default(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			b.l = other
			b.book(now - b.Int64N(60))
			b.l = l
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
		q := b.randomQuery(now)
		// A ledger without a cache reads a copy.
		copied := filepath.Join(t.TempDir(), "copy.db")
		if _, err := db.ExecContext(t.Context(), "VACUUM INTO '"+copied+"'"); err != nil {
			t.Fatal(err)
		}
		fresh, err := ledger.Open(context.Background(), copied, ledger.Default(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		want, err := fresh.Usage(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if err := fresh.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			got, err := l.Usage(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, sums); d != "" {
				t.Fatalf("%+v\n-want +got:\n%s", q, d)
			}
		}
	}
	return l.CachedBlocks()
}

// TestResources checks that a query of some resources returns the same amounts as a query of all.
func TestResources(t *testing.T) {
	for name, dsn := range map[string]func(testing.TB) string{"SQLite": ledgertest.SQLite, "PostgreSQL": ledgertest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			l := ledgertest.Open(t, dsn(t))
			b := &booker{T: t, Rand: rand.New(rand.NewPCG(1, 2)), l: l}
			for i := range b.marks {
				ledgertest.Node(t, l, fmt.Sprint("n", i))
				b.marks[i] = batch.Mark{Next: 1}
			}
			m := ledgertest.Day.Unix() / 60
			for range 30 {
				b.book(m + b.Int64N(3*1440))
			}
			if err := l.Fold(t.Context(), ledgertest.Day.Add(72*time.Hour)); err != nil {
				t.Fatal(err)
			}
			want := usage.SetOf(usage.CPU, usage.Memory, usage.MemoryPeak)
			for _, by := range []query.Dimension{query.ByKind, query.ByJob} {
				q := query.Query{From: ledgertest.Day, To: ledgertest.Day.Add(72 * time.Hour), By: []query.Dimension{by}, Scope: query.Scope{All: true}}
				all, err := l.Usage(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				q.Resources = usage.SetOf(usage.Memory, usage.MemoryPeak)
				some, err := l.Usage(t.Context(), q)
				if err != nil || len(some.Groups) != len(all.Groups) || len(all.Groups) == 0 {
					t.Fatal(some, err)
				}
				for i := range all.Groups {
					a, s := &all.Groups[i].Usage, &some.Groups[i].Usage
					if s.Present != a.Present&want {
						t.Errorf("%v has %x, of %x", all.Groups[i].Keys, s.Present, a.Present)
					}
					want.Each(func(r usage.Resource) {
						if a.Sum[r] != s.Sum[r] || a.Quality.Get(r) != s.Quality.Get(r) {
							t.Errorf("%v: %v is %v, want %v", all.Groups[i].Keys, r, s.Sum[r], a.Sum[r])
						}
					})
				}
			}
		})
	}
}
