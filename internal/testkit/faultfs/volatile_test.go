package faultfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/testkit/faultfs"
)

// TestVolatile checks that another process finds only synced data: bytes after a sync of the
// file, names after a sync of the directory.
func TestVolatile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(f spool.File, at int64, text string) {
		t.Helper()
		_, err := f.WriteAt([]byte(text), at)
		must(err)
	}
	fs := &faultfs.Volatile{}
	must(fs.MkdirAll(dir))
	kept, err := fs.Create(at("kept"))
	must(err)
	write(kept, 0, "synced")
	must(kept.Sync())
	must(fs.SyncDir(dir))
	write(kept, 6, " and not")
	lost, err := fs.Create(at("lost"))
	must(err)
	write(lost, 0, "a file without a name")
	must(lost.Sync())
	must(fs.Rename(at("kept"), at("moved")))

	names, err := fs.List(dir)
	must(err)
	if slices.Sort(names); !slices.Equal(names, []string{"lost", "moved"}) {
		t.Errorf("this process sees %q", names)
	}
	if n, err := kept.Size(); n != 14 || err != nil {
		t.Errorf("this process sees %d bytes, %v", n, err)
	}

	next := &faultfs.Volatile{}
	must(next.MkdirAll(dir))
	names, err = next.List(dir)
	must(err)
	if !slices.Equal(names, []string{"kept"}) {
		t.Errorf("the next process sees %q", names)
	}
	f, err := next.Open(at("kept"))
	must(err)
	if n, err := f.Size(); n != 6 || err != nil {
		t.Errorf("the next process sees %d bytes, %v", n, err)
	}
	must(next.Remove(at("kept")))
	if _, err := next.Open(at("kept")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open of a removed file: %v", err)
	}
	must(next.SyncDir(dir))
	if _, err := os.Stat(at("kept")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed file is still on disk: %v", err)
	}
}
