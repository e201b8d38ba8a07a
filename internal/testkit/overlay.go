package testkit

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Overlay writes a file for go build -overlay that replaces source files, and returns its path. An
// overlay in GOFLAGS, as that of a regression, holds for all other files: the flag alone would
// replace it as a whole.
func Overlay(t testing.TB, replaced map[string]string) string {
	t.Helper()
	type overlay struct{ Replace map[string]string }
	all := overlay{map[string]string{}}
	for flag := range strings.FieldsSeq(os.Getenv("GOFLAGS")) {
		path, ok := strings.CutPrefix(flag, "-overlay=")
		if !ok {
			continue
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	maps.Copy(all.Replace, replaced)
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
