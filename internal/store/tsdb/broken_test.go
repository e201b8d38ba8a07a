package tsdb_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"mete.dev/mete/internal/store/tsdb"
)

// Open sets an unreadable directory aside.
func TestBroken(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(dir string) error{
		"block without an index": func(dir string) error {
			b := filepath.Join(dir, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
			if err := os.MkdirAll(b, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(b, "meta.json"), []byte(`{"version":1,"ulid":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}`), 0o600)
		},
		"log that is a file": func(dir string) error { return os.WriteFile(filepath.Join(dir, "wal"), []byte("no"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "metrics")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := harm(dir); err != nil {
				t.Fatal(err)
			}
			cfg := tsdb.Default()
			cfg.Dir = dir
			var log bytes.Buffer
			s, err := tsdb.Open(cfg, fakeRegistry{}, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if aside, _ := filepath.Glob(dir + ".broken-*"); len(aside) != 1 {
				t.Errorf("set aside %v, want one directory", aside)
			}
			if n := strings.Count(log.String(), "set aside"); n != 1 {
				t.Errorf("%d times: %s", n, log.String())
			}
		})
	}
}
