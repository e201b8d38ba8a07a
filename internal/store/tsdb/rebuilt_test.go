package tsdb_test

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// After any damage to the time series database the server starts, logs what it set aside,
// and restores the series from the ledger.
func TestBrokenMetrics(t *testing.T) {
	t.Parallel()
	var history *pair // each case damages a copy of it
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		history = newPairIn(t, *seed, 9*time.Hour, dir, filepath.Join(dir, "ledger.db"))
		history.live(4 * time.Hour)
		if err := history.metrics.DB().Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		history.live(40 * time.Minute)
	})
	for _, tc := range []struct {
		name, files string
		harm        func(path string) error
		setAside    bool
	}{
		{"bytes in the log", "wal/0*", corrupt, true},
		{"a segment of the log", "wal/0*", truncate, true},
		{"the log", "wal", file, true},
		{"bytes of chunks in memory", "chunks_head/0*", corrupt, false},
		{"chunks in memory", "chunks_head/0*", truncate, true},
		{"the index of a block", "0*/index", truncate, true},
		{"missing index", "0*/index", os.Remove, true},
		{"the chunks of a block", "0*/chunks/000001", truncate, true},
		{"missing chunks", "0*/chunks", os.RemoveAll, true},
		{"metadata of a block", "0*/meta.json", truncate, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := history.copyTo(t)
				found, err := filepath.Glob(filepath.Join(p.metricsDir(), tc.files))
				if err != nil || len(found) == 0 {
					t.Fatal(found, err)
				}
				// The newest file may still be empty, so damage the largest.
				slices.Sort(found)
				if err := tc.harm(slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(diskSize(a), diskSize(b)) })); err != nil {
					t.Fatal(err)
				}
				p.open()
				t.Cleanup(p.close)
				p.live(10 * time.Minute)
				if p.metrics.Stats().IncompleteNodes > 0 {
					p.fill()
				}
				p.checkEqual(tc.name, p.begin)
				p.checkBrief(tc.name)
				setAside, _ := filepath.Glob(p.metricsDir() + ".broken-*")
				if (len(setAside) == 1) != tc.setAside {
					t.Errorf("set aside: %v", setAside)
				}
				if logged := p.log.String(); tc.setAside && (!strings.Contains(logged, "set aside") || !strings.Contains(logged, "hint=")) {
					t.Errorf("no log message with hint: %s", logged)
				}
			})
		})
	}
}

// diskSize returns the size of a file, 0 for a directory.
func diskSize(path string) int64 {
	i, err := os.Stat(path)
	if err != nil || i.IsDir() {
		return 0
	}
	return i.Size()
}

// corrupt overwrites 64 bytes in the middle of a file.
func corrupt(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) < 1000 {
		return errors.New(path + ": too small")
	}
	copy(b[len(b)/2:], bytes.Repeat([]byte{0xa5}, 64))
	return os.WriteFile(path, b, 0o600)
}

func truncate(path string) error { return os.Truncate(path, 5) }

// file replaces a directory by a file.
func file(path string) error {
	return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("no"), 0o600))
}
