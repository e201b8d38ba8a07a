// Package reexec finds a program of the same build as this one, and becomes it.
//
// A program that is installed has the other beside it. One that the go command
// has just built and runs has not: then the other is built of the same source.
// Neither is run where others than root and this user could have changed it.
package reexec

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

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/trusted"
)

// Exec becomes the program called name, with args, under the name as: it does
// not return unless it fails. What takes long is told on notes.
func Exec(name, as string, args []string, notes io.Writer) error {
	path, err := find(name, sourceTree(), notes)
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
		return trusted.File(beside)
	}
	lacks := func(why error) error {
		return fault.WithHint(fmt.Errorf("%s is not there: %w", beside, why),
			fmt.Sprintf("install both programs of mete into one directory; from its source: go build -o %s/ ./cmd/mete ./cmd/%s", filepath.Dir(self), name))
	}
	if tree == "" {
		return "", lacks(fault.ErrNotFound)
	}
	path, err := build(name, tree, notes)
	if err != nil && fault.Hint(err) == "" {
		err = lacks(err)
	}
	if err != nil {
		return "", err
	}
	return path, nil
}

// sourceTree is the directory of the source that this program was built of, as far as
// it is still there; "" where it is not.
func sourceTree() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) { // built with -trimpath
		return ""
	}
	tree := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(file))))
	if b, err := os.ReadFile(filepath.Join(tree, "go.mod")); err != nil || !bytes.HasPrefix(b, []byte("module mete.dev/mete\n")) {
		return ""
	}
	return tree
}

// sources are the entries of the tree of which its programs are built.
var sources = []string{"go.mod", "go.sum", "vendor", "cmd", "internal", "proto"}

// build builds the program called name of the tree and returns where it is. The go
// command keeps what it built: it is done in a second where nothing changed. It is
// told by the environment alone, and by no file outside the tree, how to build.
func build(name, tree string, notes io.Writer) (string, error) {
	tree, err := trusted.Tree(tree, sources...)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "mete")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if dir, err = trusted.File(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(notes, "mete: building %s of %s; the first time takes a minute or two\n", name, tree)
	} else {
		slow := time.AfterFunc(2*time.Second, func() { fmt.Fprintf(notes, "mete: building %s of %s\n", name, tree) })
		defer slow.Stop()
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+name)
	cmd.Dir = tree
	// A go.work above the tree and a file of go env -w can put other code in place of
	// the tree's, and GOFLAGS can run programs of its own.
	cmd.Env = append(secretenv.Strip(os.Environ()), "GOWORK=off", "GOENV=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		if out = bytes.TrimSpace(out); len(out) > 0 {
			out = append([]byte("\n"), out...)
		}
		return "", fault.WithHint(fmt.Errorf("go build ./cmd/%s: %w%s", name, err, out),
			fmt.Sprintf("settings of go env -w and GOFLAGS are left out: where GOPROXY or others are needed, set them in the environment; or build it yourself: cd %s && go build -o DIRECTORY/ ./cmd/mete ./cmd/%s", tree, name))
	}
	return path, nil
}
