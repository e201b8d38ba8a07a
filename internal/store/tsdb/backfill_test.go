package tsdb_test

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

// Over whole minutes the series of a workload increase by the use in the ledger: live, after
// late batches, a restart and a fold, and after the loss and backfill of some or all samples.
func TestMetricsEqualLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testEqual(t, newPair(t, 9*time.Hour)) })
}

// TestMetricsEqualLedger with a ledger in PostgreSQL.
func TestMetricsEqualPostgreSQL(t *testing.T) {
	t.Parallel()
	testEqual(t, newPairIn(t, *seed, 9*time.Hour, t.TempDir(), ledgertest.PostgreSQL(t)))
}

// TestMetricsEqualLedger and its variants with random histories.
func TestMetricsEqualLedgerDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "draws many histories")
	for range 10 {
		for name, test := range map[string]func(*testing.T, *pair){"": testEqual, " over the limit": testOverLimit, " from a backup": testBackedUp} {
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
	p.checkEqual("live", p.begin)
	p.checkBrief("live")

	p.late(10 * time.Minute)
	p.checkEqual("late", p.begin)

	p.close()
	p.open()
	p.live(10 * time.Minute)
	p.checkEqual("started again", p.begin)

	// A power failure loses the last half hour of samples.
	p.losePower(30 * time.Minute)
	p.live(10 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkEqual("after the power failed", p.begin)

	// Appends fail for a while, as with a full disk.
	p.live(10 * time.Minute)
	p.ledger.fails.Store(true)
	w := p.start(workload.Container, "unheard of")
	w.permanent, w.restarted = true, true // it is in all batches
	p.names = nil
	p.live(20 * time.Minute)
	p.ledger.fails.Store(false)
	p.names = append(p.names, w.name)
	p.live(15 * time.Minute)
	if p.metrics.Stats().IncompleteNodes != 1 {
		t.Errorf("%d incomplete nodes after refused samples, want 1", p.metrics.Stats().IncompleteNodes)
	}
	p.close()
	p.open() // a restart keeps the record of missing samples
	p.live(5 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkEqual("after samples were refused", p.begin)

	p.close()
	if err := os.RemoveAll(p.metricsDir()); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(10 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkEqual("filled in from nothing", p.begin)
	p.checkBrief("filled in from nothing")

	if err := p.ledger.Fold(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	p.live(5 * time.Minute)
	p.checkEqual("folded", p.begin)
	p.checkBrief("folded")
}

// Samples that are too old for the database on arrival are filled in.
func TestMetricsOfOldBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 9*time.Hour)
		p.close()
		p.maxAge = time.Hour
		p.open()
		p.live(time.Hour)
		p.late(4 * time.Hour)
		if n := p.metrics.Stats(); n.Refused == 0 || n.IncompleteNodes != 1 {
			t.Fatalf("%d samples refused, %d incomplete nodes", n.Refused, n.IncompleteNodes)
		}
		p.live(10 * time.Minute)
		if p.fill() == 0 {
			t.Error("no sample was filled in")
		}
		p.checkEqual("old batches", p.begin)
	})
}

// Missing samples that an earlier version recorded in holes.json are filled in.
func TestMetricsOfHoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 9*time.Hour)
		p.live(30 * time.Minute)
		p.ledger.fails.Store(true)
		from := p.wall()
		w := p.start(workload.Container, "unheard of")
		w.permanent, w.restarted = true, true // it is in all batches
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
			t.Error("holes.json was not removed", err)
		}
		p.live(5 * time.Minute)
		if p.fill() == 0 {
			t.Error("no sample was filled in")
		}
		p.checkEqual("holes of an earlier version", p.begin)
	})
}

// If a node exceeds the limit of workloads with own series, the sum of all series increases
// by the use in the ledger: live, and after the loss and backfill of some or all samples.
// Workloads without own series do not count as incomplete.
func TestMetricsOverLimitEqualLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testOverLimit(t, newPair(t, 9*time.Hour)) })
}

func testOverLimit(t *testing.T, p *pair) {
	t.Helper()
	p.close()
	p.maxWorkloads = 5
	p.open()
	p.live(time.Hour)
	p.checkSum("live")

	p.losePower(30 * time.Minute)
	p.live(15 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkSum("after the power failed")

	p.live(15 * time.Minute)
	if n := p.metrics.Stats().IncompleteNodes; n != 0 {
		t.Errorf("%d incomplete nodes, want 0", n)
	}
	p.close()
	if err := os.RemoveAll(p.metricsDir()); err != nil {
		t.Fatal(err)
	}
	p.open()
	p.live(15 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkSum("filled in from nothing")
}

// checkSum compares the increase of all series together with the ledger.
func (p *pair) checkSum(when string) {
	p.t.Helper()
	from, to := p.begin.Truncate(time.Minute).Add(time.Minute), p.wall().Truncate(time.Minute)
	for _, res := range pairResources {
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
		got, _, _ := p.increase(f, metric.ShortLived, from, to)
		for i := range p.all {
			sum, _, seen := p.increase(f, string(p.all[i].ID), from, to)
			if got += sum; seen > 0 {
				own++
			}
		}
		if math.Abs(got-f.Value(want)) > 1e-9*got {
			p.t.Errorf("%s: %s: all series increased by %v, ledger has %v", when, res, got, f.Value(want))
		}
		if own > p.maxWorkloads+2 { // and the residual rows
			p.t.Errorf("%s: %d of %d workloads have own series of %s, want %d", when, own, len(p.all), res, p.maxWorkloads)
		}
	}
}

// losePower runs the machine for a time of which a power failure takes all samples.
func (p *pair) losePower(lost time.Duration) {
	p.t.Helper()
	copied := filepath.Join(p.dir, "copy")
	p.close()
	if err := os.CopyFS(copied, os.DirFS(p.metricsDir())); err != nil {
		p.t.Fatal(err)
	}
	p.open()
	p.live(lost)
	p.close()
	replaceDir(p.t, copied, p.metricsDir())
	p.open()
}

func replaceDir(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.Rename(from, to)); err != nil {
		t.Fatal(err)
	}
}

// checkBrief compares the shared series of workloads that lived in one window only with the
// ledger. It requires that no batch was late.
func (p *pair) checkBrief(when string) {
	p.t.Helper()
	to := p.wall().Truncate(time.Minute)
	for _, res := range pairResources {
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
		got, _, seen := p.increase(f, metric.ShortLived, time.Unix(0, 0), to)
		if math.Abs(got-f.Value(want)) > 1e-9*got {
			p.t.Errorf("%s: %s of %d brief workloads: series increased by %v in %d samples, ledger has %v", when, res, len(p.brief), got, seen, f.Value(want))
		}
	}
}
