package tsdb_test

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// killed is the environment variable with the directory in which a child process books
// windows until it is killed.
const killed = "METE_TEST_KILLED"

// After a process was killed while it booked windows, the series contain each minute that is
// booked in the ledger.
func TestKilledMetrics(t *testing.T) {
	if dir := os.Getenv(killed); dir != "" {
		p := newPairIn(t, *seed, 9*time.Hour, dir, filepath.Join(dir, "ledger.db"))
		for p.at < int64(8*time.Hour) {
			p.put(p.batch())
			_, _ = os.Stdout.WriteString("took\n")
		}
		select {} // wait for the kill
	}
	t.Parallel()
	random := rand.New(rand.NewPCG(*seed, 14))
	for range 4 {
		p := &pair{t: t, dir: t.TempDir()}
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledMetrics$", fmt.Sprintf("-seed=%d", *seed))
		cmd.Env = append(os.Environ(), killed+"="+p.dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasSuffix(lines.Text(), "took") {
				if n++; n == 40 {
					time.AfterFunc(time.Duration(random.Int64N(int64(50*time.Millisecond))), func() { _ = cmd.Process.Kill() })
				}
			}
		}
		if err := cmd.Wait(); err == nil || n < 40 {
			t.Fatalf("ended before the kill, after %d batches: %v", n, err)
		}
		p.checkReopened()
	}
}

// checkReopened reopens ledger and series and compares all complete minutes of all workloads.
func (p *pair) checkReopened() {
	p.t.Helper()
	l, err := ledger.Open(p.t.Context(), filepath.Join(p.dir, "ledger.db"), ledger.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	p.ledger = &flakyLedger{Ledger: l}
	p.open()
	defer func() {
		if err := errors.Join(p.metrics.Close(), l.Close()); err != nil {
			p.t.Error(err)
		}
	}()
	through, err := l.Through(p.t.Context(), "n1")
	if err != nil || through.IsZero() {
		p.t.Fatal(through, err)
	}
	to := through.Truncate(time.Minute)
	used := map[workload.ShortID]int64{}
	err = l.Minutes(p.t.Context(), []string{"n1"}, to.Add(-12*time.Hour), to, func(_ int, m *batch.Minute) error {
		used[m.Workload] += m.Usage.Amount[usage.CPU]
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	shorts := make([]workload.ShortID, 0, len(used))
	for short := range used {
		shorts = append(shorts, short)
	}
	names, err := l.Names(p.t.Context(), "n1", shorts)
	if err != nil || len(names) < 8 {
		p.t.Fatal(names, err)
	}
	f, some := metric.FamilyOf(usage.CPU), 0
	for short, n := range names {
		want := f.Value(used[short])
		got, off, seen := p.increase(f, string(n.ID), time.Unix(0, 0), to)
		if seen == 0 && !n.Ended.IsZero() {
			continue // workloads of one window share a series
		}
		if some++; math.Abs(got-want) > math.Max(1e-9*want, off) {
			p.t.Errorf("%s: series increased by %v, ledger has %v", n.Name, got, want)
		}
	}
	if p.t.Failed() {
		p.t.Log(p.log.String())
	}
	if some < 8 || p.metrics.Stats().IncompleteNodes > 0 {
		p.t.Errorf("%d workloads compared, %d incomplete nodes", some, p.metrics.Stats().IncompleteNodes)
	}
}
