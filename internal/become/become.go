// Package become finds a program of the same build as this one, and becomes it.
//
// A program that is installed has the other beside it. One that the go command
// has just built and runs has not: then the other is built of the same source.
package become

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"mete.dev/mete/internal/fault"
)

// Program becomes the program called name, with args, under the name as: it does
// not return unless it fails. What takes long is told on notes.
func Program(name, as string, args []string, notes io.Writer) error {
	path, err := find(name, source(), notes)
	if err != nil {
		return err
	}
	if err := syscall.Exec(path, append([]string{as}, args...), os.Environ()); err != nil {
		return fmt.Errorf("starting %s: %w", path, err)
	}
	return nil
}

// find returns where the program called name is. tree is the source that this
// program was built of, "" where nobody knows.
func find(name, tree string, notes io.Writer) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	lacks := func(why error) error {
		return fault.WithHint(fmt.Errorf("%s is not there: %w", beside, why),
			fmt.Sprintf("install both programs of mete into one directory; from its source: go build -o %s/ ./cmd/mete ./cmd/%s", filepath.Dir(self), name))
	}
	if tree == "" {
		return "", lacks(fault.ErrNotFound)
	}
	for _, part := range []string{"", "go.mod", "cmd", "internal"} {
		if err := mine(filepath.Join(tree, part), os.Geteuid()); err != nil {
			return "", lacks(err)
		}
	}
	path, err := build(name, tree, notes)
	if err != nil {
		return "", lacks(err)
	}
	return path, nil
}

// source is the directory of the source that this program was built of, as far as
// it is still there; "" where it is not.
func source() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) { // built with -trimpath
		return ""
	}
	tree := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if b, err := os.ReadFile(filepath.Join(tree, "go.mod")); err != nil || !bytes.HasPrefix(b, []byte("module mete.dev/mete\n")) {
		return ""
	}
	return tree
}

// mine refuses a file or directory that is neither user's nor root's, or that all may
// write: who runs a program does not mean to run what others have put there since.
func mine(file string, user int) error {
	info, err := os.Stat(file)
	if err == nil && (!owns(info, user) || info.Mode().Perm()&0o002 != 0) {
		err = fmt.Errorf("%s is another user's, and what is in it is not run: %w", file, fault.ErrDenied)
	}
	return err
}

func owns(info fs.FileInfo, user int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == user || st.Uid == 0)
}

// reached is mine for a directory, and says that nobody else can put another one in
// its place: root may run with the home directory of a user.
func reached(dir string, user int) error {
	err := mine(dir, user)
	for err == nil && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, failed := os.Stat(dir)
		// In one like /tmp all may write, and rename what is theirs.
		if err = failed; err == nil && (info.Mode()&fs.ModeSticky == 0 || !owns(info, user)) {
			err = mine(dir, user)
		}
	}
	return err
}

// build builds the program called name of the tree and returns where it is. The go
// command keeps what it built: it is done in a second where nothing changed.
func build(name, tree string, notes io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "mete")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := reached(dir, os.Geteuid()); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(notes, "mete: building %s of %s; the first time takes a minute or two\n", name, tree)
	} else {
		slow := time.AfterFunc(2*time.Second, func() { fmt.Fprintf(notes, "mete: building %s of %s\n", name, tree) })
		defer slow.Stop()
	}
	cmd := exec.Command("go", "build", "-o", path, "./cmd/"+name)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		if out = bytes.TrimSpace(out); len(out) > 0 {
			out = append([]byte("\n"), out...)
		}
		return "", fmt.Errorf("go build ./cmd/%s: %w%s", name, err, out)
	}
	return path, nil
}
