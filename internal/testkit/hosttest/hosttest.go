// Package hosttest opens captured machines for tests, and checks what a test needs of the
// machine that it runs on.
//
// The machines are testdata/*.txtar, in the format of mete capture: vm-v1-apart was
// captured; the tests of this package construct the others from the kernel's documentation
// for the versions in their headers.
package hosttest

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"mete.dev/mete/internal/host/hostfs"
)

//go:embed testdata/*.txtar
var machines embed.FS

// Names lists the captured machines.
func Names(t testing.TB) []string {
	t.Helper()
	es, err := machines.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		names = append(names, strings.TrimSuffix(e.Name(), ".txtar"))
	}
	return names
}

// Open unpacks the captured machine into a writable directory of the test, and opens it.
func Open(t testing.TB, name string) *hostfs.FS {
	t.Helper()
	b, err := machines.ReadFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	return Unpack(t, b)
}

// Unpack is Open for the bytes of a capture.
func Unpack(t testing.TB, capture []byte) *hostfs.FS {
	t.Helper()
	root := dir(t)
	for _, f := range txtar.Parse(capture).Files {
		if err := unpack(root, f.Name, f.Data); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// dir creates a directory for a thousand small files: in memory if possible, because disks
// take a second for that.
func dir(t testing.TB) string {
	root, err := os.MkdirTemp("/dev/shm", "mete-test-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

// unpack writes one entry: a file, or a link where the name is "a -> b".
func unpack(root, name string, data []byte) error {
	name, to, isLink := strings.Cut(name, " -> ")
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%s: outside the machine", name)
	}
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	if !isLink {
		// Keep the inode of an existing file, so that kept descriptors see its new content,
		// as with the kernel's files.
		return os.WriteFile(p, data, 0o644)
	}
	if filepath.IsAbs(to) {
		rel, err := filepath.Rel(filepath.Dir(p), filepath.Join(root, to))
		if err != nil {
			return err
		}
		to = rel
	}
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(to, p)
}

// Step moves a captured machine to its next tick. Files change in place; removed ones are
// removed first, so that a descriptor of a recreated group reads ENODEV like one of a
// removed group. It fails the test if the capture has no further tick.
func Step(t testing.TB, h *hostfs.FS) {
	t.Helper()
	root := h.Path("/")
	now := 1
	if b, err := h.ReadFile("/mete/tick"); err == nil {
		if now, err = strconv.Atoi(string(bytes.TrimSpace(b))); err != nil {
			t.Fatal(err)
		}
	}
	now++
	overlay := filepath.Join(root, fmt.Sprintf("tick%d", now))
	if _, err := os.Stat(overlay); err != nil {
		t.Fatalf("the capture has no tick %d", now)
	}
	if err := remove(root, filepath.Join(overlay, "mete/gone")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(overlay, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(overlay, p)
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return unpack(root, name+" -> "+to, nil)
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return unpack(root, name, data)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := unpack(root, "mete/tick", []byte(strconv.Itoa(now)+"\n")); err != nil {
		t.Fatal(err)
	}
}

// remove removes the listed files, and directories that become empty.
func remove(root, list string) error {
	b, err := os.ReadFile(list)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.Lines(string(b)) {
		name = strings.TrimSuffix(name, "\n")
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%s: outside the machine", name)
		}
		if err := os.Remove(filepath.Join(root, name)); err != nil {
			return err
		}
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			if os.Remove(filepath.Join(root, dir)) != nil {
				break // not empty
			}
		}
	}
	return nil
}
