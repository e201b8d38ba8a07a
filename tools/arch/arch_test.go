package arch_test

import (
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/tools/arch"
)

const (
	root   = "../.."
	module = "mete.dev/mete/"
)

// TestArchitecture checks the code against the plan in ARCHITECTURE.md.
//
// It reads the tree itself, so that the go command knows its inputs and never caches a
// stale result.
func TestArchitecture(t *testing.T) {
	plan := readPlan(t)
	var pkgs []arch.Package
	for _, top := range []string{"internal", "cmd", "tools"} {
		for _, dir := range dirs(t, filepath.Join(root, top)) {
			if pkg, ok := load(t, plan, dir); ok {
				pkgs = append(pkgs, pkg)
			}
		}
	}
	if len(pkgs) < 5 {
		t.Fatalf("found only %d packages below %s", len(pkgs), root)
	}
	for _, problem := range plan.Check(pkgs) {
		t.Error(problem)
	}
}

// TestLinked checks what packages link.
func TestLinked(t *testing.T) {
	plan := readPlan(t)
	for _, name := range []string{"go.mod", "go.sum"} { // for the go command's cache
		read(t, filepath.Join(root, name))
	}
	if len(plan.Rules) == 0 {
		t.Fatal("ARCHITECTURE.md has no never or only lines")
	}
	for _, rule := range plan.Rules {
		dir := rule.Package
		if !strings.HasPrefix(dir, "cmd/") && !strings.HasPrefix(dir, "tools/") {
			dir = "internal/" + dir
		}
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./"+dir)
		cmd.Dir = root
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -deps ./%s: %v", dir, err)
		}
		for _, problem := range rule.CheckLinked(strings.Fields(string(out))) {
			t.Error(problem)
		}
	}
}

func readPlan(t *testing.T) arch.Plan {
	t.Helper()
	plan, err := arch.Parse(string(read(t, filepath.Join(root, "ARCHITECTURE.md"))))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dirs returns dir and the directories below it that the go command reads.
func dirs(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	list = append(list, dir)
	for _, e := range entries {
		if e.IsDir() && e.Name() != "testdata" && !strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(e.Name(), "_") {
			list = append(list, dirs(t, filepath.Join(dir, e.Name()))...)
		}
	}
	return list
}

// load reads the package in dir, and reports violations of purity. It returns false for a
// directory without Go code.
func load(t *testing.T, plan arch.Plan, dir string) (arch.Package, bool) {
	t.Helper()
	pkg, err := build.Default.ImportDir(dir, 0)
	if _, none := err.(*build.NoGoError); none {
		return arch.Package{}, false
	} else if err != nil {
		t.Errorf("%s: %v", dir, err)
		return arch.Package{}, false
	}
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	p := arch.Package{Name: name(filepath.ToSlash(rel))}
	for _, path := range pkg.Imports {
		p.Imports = append(p.Imports, name(strings.TrimPrefix(path, module)))
	}
	if !plan.IsPure(p.Name) {
		return p, true
	}
	for _, file := range pkg.GoFiles {
		file = filepath.Join(dir, file)
		problems, err := arch.Impure(file, read(t, file))
		if err != nil {
			t.Error(err)
		}
		for _, problem := range problems {
			t.Error(problem)
		}
	}
	return p, true
}

// name converts a path below the module's root into a name of the plan.
func name(path string) string { return strings.TrimPrefix(path, "internal/") }
