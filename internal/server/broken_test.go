package server_test

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

// Whatever of the metrics is damaged on the disk: the server starts, says what it
// set aside and what becomes of it, and the series are what the ledger says again.
func TestBrokenMetrics(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, files string
		harm        func(path string) error
		aside       bool
	}{
		{"bytes in the log", "wal/0*", flip, true},
		{"a segment of the log", "wal/0*", cutOff, true},
		{"the log", "wal", file, true},
		{"bytes of chunks in memory", "chunks_head/0*", flip, false},
		{"chunks in memory", "chunks_head/0*", cutOff, true},
		{"the index of a block", "0*/index", cutOff, true},
		{"an index that is not there", "0*/index", os.Remove, true},
		{"the chunks of a block", "0*/chunks/000001", cutOff, true},
		{"chunks that are not there", "0*/chunks", os.RemoveAll, true},
		{"what a block says of itself", "0*/meta.json", cutOff, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 9*time.Hour)
				p.live(4 * time.Hour)
				if err := p.metrics.DB().Compact(t.Context()); err != nil {
					t.Fatal(err)
				}
				p.live(40 * time.Minute)
				p.close()
				found, err := filepath.Glob(filepath.Join(p.metricsDir(), tc.files))
				if err != nil || len(found) == 0 {
					t.Fatal(found, err)
				}
				// What was written last may be empty yet.
				slices.Sort(found)
				if err := tc.harm(slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(diskSize(a), diskSize(b)) })); err != nil {
					t.Fatal(err)
				}
				p.open()
				p.live(10 * time.Minute)
				if p.metrics.Stats().IncompleteNodes > 0 {
					p.fill()
				}
				p.equal(tc.name, p.begin)
				p.together(tc.name)
				aside, _ := filepath.Glob(p.metricsDir() + ".broken-*")
				if (len(aside) == 1) != tc.aside {
					t.Errorf("set aside: %v", aside)
				}
				if said := p.log.String(); tc.aside && (!strings.Contains(said, "set aside") || !strings.Contains(said, "hint=")) {
					t.Errorf("it says nothing of it: %s", said)
				}
			})
		})
	}
}

// diskSize is how long a file is; of a directory it says nothing.
func diskSize(path string) int64 {
	i, err := os.Stat(path)
	if err != nil || i.IsDir() {
		return 0
	}
	return i.Size()
}

// flip changes some bytes in the middle of a file.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) < 1000 {
		return errors.New("there is nothing in " + path)
	}
	copy(b[len(b)/2:], bytes.Repeat([]byte{0xa5}, 64))
	return os.WriteFile(path, b, 0o600)
}

func cutOff(path string) error { return os.Truncate(path, 5) }

// file puts a file in place of a directory.
func file(path string) error {
	return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("no"), 0o600))
}
