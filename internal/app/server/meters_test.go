package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
)

// TestReadMeters checks that a file of meters may contain secrets only if no other user can read it.
func TestReadMeters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meters.yaml")
	if specs, err := readMeters(""); specs != nil || err != nil {
		t.Errorf("without a file: %v, %v", specs, err)
	}
	if _, err := readMeters(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	text := "meters:\n  - {name: a, type: http, url: 'http://a', unit: W, user: u, password: p, nodes: [n]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if specs, err := readMeters(path); err != nil || len(specs) != 1 || specs[0].Password.Clear != "p" {
		t.Errorf("a private file: %+v, %v", specs, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := readMeters(path)
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "meters.yaml: line 2: meter \"a\": password, token: others can read this file") || fault.Hint(err) == "" {
		t.Errorf("a file that others can read: %v", err)
	}
}
