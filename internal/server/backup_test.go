package server_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/registry"
)

// A server started from a backup knows the agents and has the data of the first one.
func TestBackup(t *testing.T) {
	state := t.TempDir()
	first := open(t, state, nil)
	id := first.enroll(t, registry.Agent, "m1")
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, first, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatal(r, err)
	}
	use := func(b *bench) (covered float64, workloads int) {
		t.Helper()
		f := 0.0
		to := time.Now().Add(time.Minute)
		l, err := b.Ledger.Through(t.Context(), id.Node())
		if err != nil || l.IsZero() {
			t.Errorf("booked through %v, %v", l, err)
		}
		err = b.Ledger.Minutes(t.Context(), []string{id.Node()}, to.Add(-time.Hour), to, func(_ int, m *batch.Minute) error {
			f += float64(m.Usage.Covered)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		q, err := b.Metrics.Queryable().Querier(0, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.Close() }()
		all, _, err := q.LabelValues(t.Context(), metric.Workload, nil)
		if err != nil {
			t.Error(err)
		}
		return f, len(all)
	}
	// Create a block, which Backup links or copies.
	head := first.Metrics.DB().Head()
	if err := first.Metrics.DB().CompactHead(tsdb.NewRangeHead(head, head.MinTime(), head.MaxTime())); err != nil {
		t.Fatal(err)
	}
	if len(first.Metrics.DB().Blocks()) != 1 {
		t.Errorf("%d blocks", len(first.Metrics.DB().Blocks()))
	}

	places := map[string]string{"the same file system": t.TempDir()}
	if other := otherFileSystem(t, places["the same file system"]); other != "" {
		places["another file system"] = other
	}
	for where, place := range places {
		t.Run(where, func(t *testing.T) {
			dir := filepath.Join(place, "copy")
			b, err := first.Backup(t.Context(), dir)
			if err != nil || b.Dir != dir || b.Ledger == nil || *b.Ledger < 4096 || b.Metrics < 1000 || b.Seconds <= 0 {
				t.Fatalf("%+v, %v", b, err)
			}
			if _, err := first.Backup(t.Context(), dir); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
				t.Errorf("second backup: %v", err)
			}
			if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				i, err := e.Info()
				if rest, _ := filepath.Rel(dir, path); err == nil && i.Mode().Perm()&0o077 != 0 && !strings.HasPrefix(rest, "metrics/") {
					t.Errorf("%s: %v", rest, i.Mode())
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			left, err := os.ReadDir(place)
			if err != nil || len(left) != 1 {
				t.Errorf("%v, %v: want only the backup", left, err)
			}
			second := open(t, dir, nil)
			wantUse, wantSeries := use(first)
			if gotUse, gotSeries := use(second); gotUse != wantUse || gotUse == 0 || gotSeries != wantSeries || gotSeries < 2 {
				t.Errorf("%v of %d workloads, want %v of %d", gotUse, gotSeries, wantUse, wantSeries)
			}
			if r, err := offer(t, id, second, sent, clock); err != nil || r.Verdict == batch.Accepted {
				t.Errorf("repeated batch: %+v, %v", r, err)
			}
		})
	}

	for dir, want := range map[string]error{
		"relative":                                 fault.ErrInvalid,
		filepath.Join(state, "copy"):               fault.ErrInvalid,
		filepath.Join(t.TempDir(), "no", "such"):   fault.ErrNotFound,
		"/dev/null/under":                          nil,
		filepath.Join("/proc", "mete-test-backup"): nil,
	} {
		if _, err := first.Backup(t.Context(), dir); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", dir, err, want)
		}
	}
}

// otherFileSystem returns a directory on another file system than dir, or "" if there is none.
func otherFileSystem(t *testing.T, dir string) string {
	t.Helper()
	other, err := os.MkdirTemp("/dev/shm", "mete-test-*")
	if err != nil {
		t.Log("no other file system:", err)
		return ""
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(other); err != nil {
			t.Error(err)
		}
	})
	var one, two syscall.Stat_t
	if err := errors.Join(syscall.Stat(dir, &one), syscall.Stat(other, &two)); err != nil {
		t.Fatal(err)
	}
	if one.Dev == two.Dev {
		t.Log("no other file system: /dev/shm is the same one")
		return ""
	}
	return other
}
