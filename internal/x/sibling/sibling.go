// Package sibling replaces the process by another program of the same build.
//
// An installed program has the other one in its directory. A program built by go run does
// not: then the other is built from the same source. Neither is run if users other than
// root and this one could have changed it.
package sibling

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
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/trusted"
)

// Exec replaces the process by the program name, with args and argv[0] as; it returns only
// on failure. It writes to notes what takes long.
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

// find returns the path of the program name. tree is the source tree of this program, "" if
// unknown.
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
	missing := func(why error) error {
		return fault.WithHint(fmt.Errorf("%s is missing: %w", beside, why), hint(filepath.Dir(self), name))
	}
	if tree == "" {
		return "", missing(fault.ErrNotFound)
	}
	path, err := build(name, tree, notes)
	if err != nil && fault.Hint(err) == "" {
		err = missing(err)
	}
	if err != nil {
		return "", err
	}
	return path, nil
}

// hint says how to put the program name beside this one, which is in dir.
func hint(dir, name string) string {
	how := "install both programs of mete in one directory; from source: "
	// The go command removes or moves the directories of go run.
	if strings.Contains(dir, "go-build") {
		return how + fmt.Sprintf("go build -o DIRECTORY/ ./cmd/mete ./cmd/%s, then DIRECTORY/mete (go run with -trimpath does not find the source)", name)
	}
	return how + fmt.Sprintf("go build -o %s/ ./cmd/mete ./cmd/%s", dir, name)
}

// sourceTree returns the directory of this program's source, "" if it is gone or unknown.
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

// sources are the entries of the tree that its programs are built from.
var sources = []string{"go.mod", "go.sum", "vendor", "cmd", "internal", "proto"}

// build builds the program name from tree and returns its path. The build cache makes a
// repeated build take a second. Only the environment configures the build, no file outside
// the tree.
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
		fmt.Fprintf(notes, "mete: building %s from %s; the first time takes a minute or two\n", name, tree)
	} else {
		slow := time.AfterFunc(2*time.Second, func() { fmt.Fprintf(notes, "mete: building %s from %s\n", name, tree) })
		defer slow.Stop()
	}
	args := []string{"build", "-buildvcs=false", "-o", path}
	// With the same flag as this program, the build takes from the cache what go run compiled for
	// it; with another one it compiles all again, the standard library too.
	if trimmed() {
		args = append(args, "-trimpath")
	}
	cmd := exec.Command("go", append(args, "./cmd/"+name)...)
	cmd.Dir = tree
	// A go.work above the tree or a file of go env -w can replace code of the tree, and
	// GOFLAGS can run other programs.
	cmd.Env = append(secretenv.Strip(os.Environ()), "GOWORK=off", "GOENV=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		if out = bytes.TrimSpace(out); len(out) > 0 {
			out = append([]byte("\n"), out...)
		}
		return "", fault.WithHint(fmt.Errorf("go build ./cmd/%s: %w%s", name, err, out),
			fmt.Sprintf("the build ignores GOFLAGS and settings of go env -w: set what is needed, such as GOPROXY, in the environment, or build it yourself: cd %s && go build -o DIRECTORY/ ./cmd/mete ./cmd/%s", tree, name))
	}
	return path, nil
}

// trimmed reports whether this program was built with -trimpath.
func trimmed() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-trimpath", Value: "true"})
}
