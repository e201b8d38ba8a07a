package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestZones checks that the counters of a tree are replaced, so that a reader that has one open sees all of
// one number.
func TestZones(t *testing.T) {
	z, err := createZones(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := z.close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"intel-rapl:0", "intel-rapl:0:0"} {
		if err := z.write(99); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(z.dir, id, "energy_uj")
		opened, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := z.write(100); err != nil {
			t.Fatal(err)
		}
		before, err := io.ReadAll(opened)
		if err != nil {
			t.Error(err)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
		after, err := os.ReadFile(file)
		if err != nil || string(before) != "99\n" || string(after) != "100\n" {
			t.Errorf("%s: %q, then %q, %v", id, before, after, err)
		}
	}
}
