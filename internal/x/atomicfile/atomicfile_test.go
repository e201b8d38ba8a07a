package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/atomicfile"
)

// Replace replaces the file and sets mode 0600; on error it keeps the old file and leaves
// no other.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"old", "new and longer"} {
		if err := atomicfile.Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q, %v, want %q", b, err, text)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	full := filepath.Join(dir, "directory")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Replace(full, nil); err == nil {
		t.Error("a directory was replaced")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
		t.Errorf("%v, %v: want the file and the directory", names, err)
	}
}

// Copy copies all files with mode 0600, and does not overwrite.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.MkdirAll(filepath.Join(from, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"x": "one", "a/b/y": "two", "a/z": ""} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": filepath.Join(dir, "other"), "dangling": "nowhere", "round": "."} {
		if err := os.Symlink(to, filepath.Join(from, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "other"), filepath.Join(from, ".new-1")} {
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := atomicfile.Copy(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := e.Info()
		if err != nil {
			return err
		}
		rest, _ := filepath.Rel(to, path)
		got += rest + " " + i.Mode().String() + "\n"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := ". drwx------\na drwx------\na/b drwx------\na/b/y -rw-------\na/z -rw-------\nlink -rw-------\nx -rw-------\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if b, err := os.ReadFile(filepath.Join(to, "a/b/y")); err != nil || string(b) != "two" {
		t.Errorf("%q, %v", b, err)
	}
	if err := atomicfile.Copy(t.Context(), from, to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over existing files: %v", err)
	}
	if err := atomicfile.Move(from, to); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Move to an existing path: %v", err)
	}
	if err := atomicfile.Move(to, filepath.Join(dir, "end")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "end", "x")); err != nil {
		t.Error(err)
	}
}

// Exchange puts a file in the place of another one, or of none, and leaves no other.
func TestExchange(t *testing.T) {
	dir := t.TempDir()
	name, temp := filepath.Join(dir, "f"), filepath.Join(dir, "f.new")
	for _, text := range []string{"first", "second"} {
		if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := atomicfile.Exchange(unix.AT_FDCWD, temp, name); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(name); err != nil || string(b) != text {
			t.Errorf("%q, %v, want %q", b, err, text)
		}
		if _, err := os.Lstat(temp); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", temp, err)
		}
	}
	if err := atomicfile.Exchange(unix.AT_FDCWD, temp, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a new file: %v", err)
	}
}

// Overwrite gives the file all of a new text, and readers that have it open all of the old one.
func TestOverwrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := atomicfile.Overwrite(name, []byte("a long text")); err != nil {
		t.Fatal(err)
	}
	opened, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }() // read only
	if err := atomicfile.Overwrite(name, []byte("short")); err != nil {
		t.Fatal(err)
	}
	before, err := io.ReadAll(opened)
	if err != nil || string(before) != "a long text" {
		t.Errorf("a reader of the old file has %q, %v", before, err)
	}
	if after, err := os.ReadFile(name); err != nil || string(after) != "short" {
		t.Errorf("%q, %v", after, err)
	}
	if list, err := os.ReadDir(filepath.Dir(name)); err != nil || len(list) != 1 {
		t.Errorf("%v, %v, want the file alone", list, err)
	}
	if err := atomicfile.Overwrite(name+"/x", nil); err == nil {
		t.Error("below a file: no error")
	}
}
