package ledger_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

const crashDSN = "METE_TEST_CRASH_DSN"

// crashEntry returns batch n of a stream, whose content follows from n. Its minutes span hours, so
// that some arrive after folding.
func crashEntry(n uint64) *batch.Entry {
	minute := ledgertest.Day.Unix()/60 + int64(n*37%600)
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: n}, workload.ShortID(n%5), int64(n), minute, minute+60)
	if n > 1 {
		e.Previous = batch.HashOf(strconv.AppendUint(nil, n-1, 10))
	}
	e.Sent = strconv.AppendUint(nil, n, 10)
	e.Hash = batch.HashOf(e.Sent)
	return e
}

// TestCrash kills a process that books and folds, at random moments. Afterwards the rows must be
// exactly those of the batches up to the mark, including every acknowledged batch.
func TestCrash(t *testing.T) {
	if dsn := os.Getenv(crashDSN); dsn != "" {
		bookForever(t, dsn)
		return
	}
	random := killTimes(t)
	dsn := ledgertest.SQLite(t)
	db := ledgertest.DB(t, dsn)
	for range 6 {
		told := kill(t, dsn, 1+random.IntN(20), time.Duration(random.IntN(5000))*time.Microsecond)
		l := ledgertest.Open(t, dsn)
		mark, err := l.Mark(t.Context(), "a", batch.Stream{1})
		if err != nil {
			t.Fatal(err)
		}
		if mark.Next <= told {
			t.Errorf("batch %d was acknowledged, but the mark is %d", told, mark.Next)
		}
		var want int64
		for n := range int64(mark.Next) {
			want += 2 * n
		}
		var minutes int64
		if err := db.QueryRow("SELECT sum(cpu) FROM minute_20260301").Scan(&minutes); err != nil || minutes != want {
			t.Errorf("the minutes have %d ns, %v; want %d", minutes, err, want)
		}
		faults, err := l.Check(t.Context())
		// The entries have no rows of their node.
		faults = slices.DeleteFunc(faults, func(s string) bool { return strings.HasPrefix(s, "balance: ") })
		if err != nil || len(faults) > 0 {
			t.Errorf("check after the crash: %q, %v", faults, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killTimes draws when processes are killed: in the same way in each run of the default gate.
func killTimes(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	if os.Getenv("METE_STAGE") != "" {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// kill runs bookForever until it has acknowledged some batches and a little longer, and returns the
// last acknowledged one.
func kill(t *testing.T, dsn string, batches int, later time.Duration) (told uint64) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
	cmd.Env = append(os.Environ(), crashDSN+"="+dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		if n, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
			told = n
		}
		if i == batches {
			time.AfterFunc(later, func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the process exited")
	}
	if told == 0 {
		t.Fatal("no batch was acknowledged")
	}
	return told
}

func bookForever(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Slice = 1
	l, err := ledger.Open(t.Context(), dsn, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ledgertest.Node(t, l, "a")
	mark, err := l.Mark(t.Context(), "a", batch.Stream{1})
	if err != nil {
		t.Fatal(err)
	}
	for n := mark.Next; ; n++ {
		results, err := l.Book(t.Context(), []*batch.Entry{crashEntry(n)})
		if err != nil || results[0].Verdict != batch.Accepted {
			t.Fatal(results, err)
		}
		fmt.Println(n)
		if n%3 == 0 {
			if err := l.Fold(t.Context(), ledgertest.Day.Add(time.Duration(n)*10*time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
