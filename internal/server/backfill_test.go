package server_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestMain(m *testing.M) { ledgertest.Main(m) }

// Between two minute edges the series of a workload grow by what the ledger says:
// live, after late batches, a restart, a fold, and after all or some of the metrics
// were lost and filled in again.
func TestMetricsEqualLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testEqual(t, newPair(t, 9*time.Hour)) })
}

// The same where the ledger is in PostgreSQL.
func TestMetricsEqualPostgreSQL(t *testing.T) {
	t.Parallel()
	testEqual(t, newPairIn(t, *seeded, 9*time.Hour, t.TempDir(), ledgertest.PostgreSQL(t)))
}

// The same for many histories.
func TestMetricsEqualLedgerDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "draws many histories")
	for range 10 {
		for name, test := range map[string]func(*testing.T, *pair){"": testEqual, " of a crowd": testCrowd, " from a copy": testBackedUp} {
			seed := rand.Uint64()
			t.Run(fmt.Sprintf("seed %d%s", seed, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					dir := t.TempDir()
					test(t, newPairIn(t, seed, 9*time.Hour, dir, filepath.Join(dir, "ledger.db")))
				})
			})
		}
	}
}

func testEqual(t *testing.T, p *pair) {
	t.Helper()
	p.live(time.Hour)
	p.equal("live", p.begin)
	p.together("live")

	p.late(10 * time.Minute)
	p.equal("late", p.begin)

	p.close()
	p.open()
	p.live(10 * time.Minute)
	p.equal("started again", p.begin)

	// The power fails: the last half hour was not on disk.
	copied := filepath.Join(p.dir, "copy")
	p.close()
	if err := os.CopyFS(copied, os.DirFS(p.metricsDir())); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(30 * time.Minute)
	p.close()
	swap(t, copied, p.metricsDir())
	p.open()
	p.live(10 * time.Minute)
	if p.fill() == 0 {
		t.Error("nothing was filled in")
	}
	p.equal("after the power failed", p.begin)

	// The disk is full: for a while nothing is taken.
	p.live(10 * time.Minute)
	p.ledger.fails.Store(true)
	w := p.start(workload.Container, "unheard of")
	w.stays, w.again = true, true // it is in all batches
	p.names = nil
	p.live(20 * time.Minute)
	p.ledger.fails.Store(false)
	p.names = append(p.names, w.name)
	p.live(15 * time.Minute)
	if p.metrics.Stats().IncompleteNodes != 1 {
		t.Errorf("%d holes after samples were refused, want 1", p.metrics.Stats().IncompleteNodes)
	}
	p.close()
	p.open() // what is missing is known over a restart
	p.live(5 * time.Minute)
	if p.fill() == 0 {
		t.Error("nothing was filled in")
	}
	p.equal("after samples were refused", p.begin)

	p.close()
	if err := os.RemoveAll(p.metricsDir()); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(10 * time.Minute)
	if p.fill() == 0 {
		t.Error("nothing was filled in")
	}
	p.equal("filled in from nothing", p.begin)
	p.together("filled in from nothing")

	if err := p.ledger.Fold(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	p.live(5 * time.Minute)
	p.equal("folded", p.begin)
	p.together("folded")
}

// What is too old for the database when it comes is filled in too.
func TestMetricsOfOldBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 9*time.Hour)
		p.close()
		p.oldest = time.Hour
		p.open()
		p.live(time.Hour)
		p.late(4 * time.Hour)
		if n := p.metrics.Stats(); n.Refused == 0 || n.IncompleteNodes != 1 {
			t.Fatalf("%d samples were refused, of %d nodes", n.Refused, n.IncompleteNodes)
		}
		p.live(10 * time.Minute)
		if p.fill() == 0 {
			t.Error("nothing was filled in")
		}
		p.equal("old batches", p.begin)
	})
}

// What an earlier version noted of missing samples is filled in.
func TestMetricsOfHoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 9*time.Hour)
		p.live(30 * time.Minute)
		p.ledger.fails.Store(true)
		from := p.wall()
		w := p.start(workload.Container, "unheard of")
		w.stays, w.again = true, true // it is in all batches
		p.names = nil
		p.live(20 * time.Minute)
		p.ledger.fails.Store(false)
		resumed := p.wall()
		p.names = append(p.names, w.name)
		p.live(15 * time.Minute)
		p.close()
		all, err := p.ledger.Unsampled(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if err := p.ledger.ClearUnsampled(t.Context(), "n1", all["n1"]); err != nil {
			t.Fatal(err)
		}
		holes := fmt.Sprintf(`{"n1":{"From":%d,"Back":%d},"who?":{"From":0,"Back":0}}`, from.UnixMilli(), resumed.UnixMilli())
		if err := os.WriteFile(filepath.Join(p.metricsDir(), "holes.json"), []byte(holes), 0o600); err != nil {
			t.Fatal(err)
		}
		p.open()
		if _, err := os.Stat(filepath.Join(p.metricsDir(), "holes.json")); !errors.Is(err, os.ErrNotExist) {
			t.Error("the file is still there", err)
		}
		p.live(5 * time.Minute)
		if p.fill() == 0 {
			t.Error("nothing was filled in")
		}
		p.equal("holes of an earlier version", p.begin)
	})
}

// Where a node has more workloads than may have series of their own, all series together
// grow by what the ledger says: live, and after some or all of the metrics were lost and
// filled in again. What has no series of its own is no hole.
func TestMetricsOfCrowdEqualLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testCrowd(t, newPair(t, 9*time.Hour)) })
}

func testCrowd(t *testing.T, p *pair) {
	t.Helper()
	p.close()
	p.most = 5
	p.open()
	p.live(time.Hour)
	p.sum("live")

	copied := filepath.Join(p.dir, "copy")
	p.close()
	if err := os.CopyFS(copied, os.DirFS(p.metricsDir())); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(30 * time.Minute)
	p.close()
	swap(t, copied, p.metricsDir())
	p.open()
	p.live(15 * time.Minute)
	if p.fill() == 0 {
		t.Error("nothing was filled in")
	}
	p.sum("after the power failed")

	p.live(15 * time.Minute)
	if n := p.metrics.Stats().IncompleteNodes; n != 0 {
		t.Errorf("%d holes of what has no series of its own", n)
	}
	p.close()
	if err := os.RemoveAll(p.metricsDir()); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(15 * time.Minute)
	if p.fill() == 0 {
		t.Error("nothing was filled in")
	}
	p.sum("filled in from nothing")
}

// sum compares what all workloads together grew by with what the ledger has.
func (p *pair) sum(when string) {
	p.t.Helper()
	from, to := p.begin.Truncate(time.Minute).Add(time.Minute), p.wall().Truncate(time.Minute)
	for _, res := range spent {
		var want int64
		err := p.ledger.Minutes(p.t.Context(), []string{"n1"}, from, to, func(_ int, m *batch.Minute) error {
			want += m.Usage.Amount[res]
			return nil
		})
		if err != nil {
			p.t.Fatal(err)
		}
		f := metric.FamilyOf(res)
		own := 0
		got, _, _ := p.grew(f, metric.ShortLived, from, to)
		for i := range p.all {
			sum, _, seen := p.grew(f, string(p.all[i].ID), from, to)
			if got += sum; seen > 0 {
				own++
			}
		}
		if math.Abs(got-f.Value(want)) > 1e-9*got {
			p.t.Errorf("%s: %s of all grew by %v, the ledger says %v", when, res, got, f.Value(want))
		}
		if own > p.most+2 { // and the residuals
			p.t.Errorf("%s: %d of %d workloads have series of %s of their own, want %d", when, own, len(p.all), res, p.most)
		}
	}
}

func swap(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.Rename(from, to)); err != nil {
		t.Fatal(err)
	}
}

// together compares what those used together that lived for less than a window, of
// which none came late.
func (p *pair) together(when string) {
	p.t.Helper()
	to := p.wall().Truncate(time.Minute)
	for _, res := range spent {
		var want int64
		err := p.ledger.Minutes(p.t.Context(), []string{"n1"}, p.begin.Truncate(time.Minute), to, func(_ int, m *batch.Minute) error {
			for id := range p.brief {
				if short, _ := workload.ShortIDOf(id); short == m.Workload {
					want += m.Usage.Amount[res]
				}
			}
			return nil
		})
		if err != nil {
			p.t.Fatal(err)
		}
		f := metric.FamilyOf(res)
		got, _, seen := p.grew(f, metric.ShortLived, time.Unix(0, 0), to)
		if math.Abs(got-f.Value(want)) > 1e-9*got {
			p.t.Errorf("%s: %s of %d brief ones grew by %v in %d samples, the ledger says %v", when, res, len(p.brief), got, seen, f.Value(want))
		}
	}
}
