package sibling

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A mete without mete-server in its directory builds it from source and executes it, the
// second time without a message.
func TestExecFromSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "mete")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// Only this package must know its source path; the others come from the build cache. The
	// compiler's flag trims no path, but names this directory: with the go command's -trimpath
	// the cache would else return the package as another checkout compiled it.
	flags := "-gcflags=mete.dev/mete/internal/x/sibling=-trimpath=" + filepath.Join(wd, "no-such-directory")
	if out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", flags, "-o", bin, "mete.dev/mete/cmd/mete").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cache, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(cache))
	for i, noted := range []bool{true, false} {
		cmd := exec.Command(bin, "server", "--help")
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "GOCACHE="+lines[0], "GOMODCACHE="+lines[1])
		var out, notes bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &notes
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "mete server [flags]") {
			t.Fatalf("%v\n%s%s", err, &out, &notes)
		}
		if strings.Contains(notes.String(), "the first time") != noted {
			t.Errorf("run %d: notes %q", i+1, &notes)
		}
	}
	// Another -trimpath than mete's would compile all packages again.
	info, err := buildinfo.ReadFile(filepath.Join(dir, "cache/mete/mete-server"))
	if err != nil {
		t.Fatalf("the built program is not kept: %v", err)
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-trimpath", Value: "true"}) {
		t.Errorf("built with %v", info.Settings)
	}
}

// The program in the same directory goes first; without it and without source the error
// says what to do.
func TestFind(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	if _, err := find("nosuch", "", &notes); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != hint(filepath.Dir(self), "nosuch") {
		t.Errorf("without program and source: %v, %q", err, fault.Hint(err))
	}
	beside := filepath.Join(filepath.Dir(self), "beside")
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(beside) })
	if path, err := find("beside", "/nowhere", &notes); err != nil || path != beside {
		t.Errorf("beside: %s, %v", path, err)
	}
	if notes.Len() > 0 {
		t.Errorf("notes: %s", &notes)
	}
}

// The hint names the directory of this program, unless it is one of go run.
func TestHint(t *testing.T) {
	for dir, want := range map[string]string{
		"/opt/mete":                       "go build -o /opt/mete/ ./cmd/mete ./cmd/other",
		"/tmp/go-build28/b001/exe":        "go build -o DIRECTORY/ ./cmd/mete ./cmd/other, then DIRECTORY/mete",
		"/root/.cache/go-build/28/28dd-d": "go build -o DIRECTORY/ ./cmd/mete ./cmd/other, then DIRECTORY/mete",
	} {
		if got := hint(dir, "other"); !strings.Contains(got, want) {
			t.Errorf("%s: %q", dir, got)
		}
	}
}

// A program that another user put into the same directory is not run.
func TestFindPlanted(t *testing.T) {
	hosttest.Need(t, "root")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	planted := filepath.Join(filepath.Dir(self), "planted")
	if err := errors.Join(os.WriteFile(planted, []byte("#!/bin/sh\n"), 0o755), os.Chown(planted, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(planted) })
	if path, err := find("planted", "", io.Discard); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), planted) || fault.Hint(err) == "" {
		t.Errorf("%s, %v", path, err)
	}
}

const nobody = 65534

// tree writes the source of a program that prints which of two modules it was built from,
// below a directory that everyone may write.
func tree(t *testing.T) (above, tree string) {
	t.Helper()
	above = t.TempDir()
	tree = filepath.Join(above, "mete")
	for name, text := range map[string]string{
		"mete/go.mod":              "module mete.dev/mete\n\ngo 1.24\n\nrequire example.com/dep v0.0.0\n\nreplace example.com/dep => ./internal/dep\n",
		"mete/cmd/tiny/main.go":    "package main\n\nimport \"example.com/dep\"\n\nfunc main() { print(dep.Text) }\n",
		"mete/internal/dep/go.mod": "module example.com/dep\n\ngo 1.24\n",
		"mete/internal/dep/dep.go": "package dep\n\nconst Text = \"good\"\n",
		"evil/go.mod":              "module example.com/dep\n\ngo 1.24\n",
		"evil/dep.go":              "package dep\n\nconst Text = \"evil\"\n",
		"go.work":                  "go 1.24\n\nuse ./mete\n\nreplace example.com/dep => ./evil\n",
		"goenv":                    "GOFLAGS=-toolexec=" + above + "/tool\n",
		"tool":                     "#!/bin/sh\ntouch " + above + "/ran\nexec \"$@\"\n",
	} {
		file := filepath.Join(above, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(above, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	// Otherwise each program that is built, also one that should be refused, compiles the standard
	// library.
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	return above, tree
}

// Files above a tree and settings of the go command do not change what is built from it.
func TestBuildIsolated(t *testing.T) {
	for _, variable := range []string{"GOENV", "GOFLAGS"} {
		above, tree := tree(t)
		if variable == "GOENV" {
			t.Setenv("GOFLAGS", "")
			t.Setenv("GOENV", filepath.Join(above, "goenv"))
		} else {
			t.Setenv("GOFLAGS", "-mod=mod -toolexec="+filepath.Join(above, "tool"))
		}
		path, err := build("tiny", tree, io.Discard)
		if err != nil {
			t.Fatalf("%v, hint %q", err, fault.Hint(err))
		}
		if out, err := exec.Command(path).CombinedOutput(); err != nil || string(out) != "good" {
			t.Errorf("built from %s, %v", out, err)
		}
		if _, err := os.Stat(filepath.Join(above, "ran")); err == nil {
			t.Errorf("%s ran a program", variable)
		}
	}
}

// A tree or a cache that others may write is not used.
func TestBuildDenied(t *testing.T) {
	hosttest.Need(t, "root")
	for what, spoil := range map[string]func(above, tree string) (path string, err error){
		"file of another user": func(_, tree string) (string, error) {
			path := filepath.Join(tree, "cmd/tiny/main.go")
			return path, os.Chown(path, nobody, nobody)
		},
		"tree of another user": func(_, tree string) (string, error) { return tree, os.Chown(tree, nobody, nobody) },
		"above the tree":       func(above, _ string) (string, error) { return above, os.Chmod(above, 0o777) },
		"cache": func(_, _ string) (string, error) {
			path := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "mete")
			return path, errors.Join(os.Mkdir(path, 0o700), os.Chown(path, nobody, nobody))
		},
	} {
		above, tree := tree(t)
		path, err := spoil(above, tree)
		if err != nil {
			t.Fatal(err)
		}
		if built, err := build("tiny", tree, io.Discard); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), path+" ") || fault.Hint(err) == "" {
			t.Errorf("%s: %s, %v", what, built, err)
		}
	}
}

// sources has every directory of the module that the programs are built from.
func TestSources(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "mete.dev/mete/cmd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for p := range strings.FieldsSeq(string(out)) {
		if own, ok := strings.CutPrefix(p, "mete.dev/mete/"); ok {
			n++
			if top, _, _ := strings.Cut(own, "/"); !slices.Contains(sources, top) {
				t.Errorf("%s is built but not checked", p)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d packages of the module are listed", n)
	}
}
