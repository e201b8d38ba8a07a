package tsdb

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
)

// truncateTornRecords removes a last record that is cut anywhere, and leaves a log with
// earlier damage unchanged.
func TestTorn(t *testing.T) {
	const page = 32 << 10 // in the documentation of the log's format
	for _, length := range []int{100, 5_000, page + 32, 3 * page} {
		dir := filepath.Join(t.TempDir(), "wal")
		w, err := wlog.New(slog.New(slog.DiscardHandler), nil, dir, compression.None)
		if err != nil {
			t.Fatal(err)
		}
		ends := []int64{0}
		for range 12 {
			if err := w.Log(bytes.Repeat([]byte{7}, length)); err != nil {
				t.Fatal(err)
			}
			_, offset, err := w.LastSegmentAndOffset()
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, int64(offset))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := wlog.SegmentName(dir, 0)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		try := func(b []byte) int64 {
			t.Helper()
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			good, err := torn(path)
			if err != nil {
				t.Fatal(err)
			}
			return good
		}
		n := len(ends)
		last, end := ends[n-2], ends[n-1]
		if got := try(whole[:end]); got != never {
			t.Errorf("record of %d bytes: a complete log is torn at %d", length, got)
		}
		for _, cut := range []int64{last + 8, last + int64(length)/2, end - 1} {
			if got := try(whole[:cut]); got != last {
				t.Errorf("record of %d bytes: cut at %d of %d: torn at %d, want %d", length, cut, end, got, last)
			}
			if err := truncateTornRecords(filepath.Dir(dir), slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			if i, err := os.Stat(path); err != nil || i.Size() != last {
				t.Errorf("record of %d bytes: truncated to %d, %v, want %d", length, i.Size(), err, last)
			}
			if got := try(whole[:last]); got != never {
				t.Errorf("record of %d bytes: a truncated log is torn at %d", length, got)
			}
		}
		whole[50] ^= 0xff
		for _, size := range []int64{end, page + 1, page + 500} { // the damage is in the first page
			if size > end || size <= page {
				continue
			}
			if got := try(whole[:size]); got != never {
				t.Errorf("record of %d bytes: a log of %d bytes that is damaged at its start is torn at %d", length, size, got)
			}
		}
	}
}
