package main

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// scope returns the packages of the run: all of them, or with fast those that changed and
// their direct importers. The changes are those since the last commit or, without any,
// those of that commit.
func scope(ctx context.Context, fast bool) ([]string, error) {
	if !fast {
		return []string{"./..."}, nil
	}
	sh := shell{ctx: ctx}
	files, err := sh.lines("git", "diff", "--name-only", "HEAD")
	if err != nil {
		return nil, err
	}
	untracked, err := sh.lines("git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	if files = append(files, untracked...); len(files) == 0 {
		if files, err = sh.lines("git", "diff", "--name-only", "HEAD~1", "HEAD"); err != nil {
			return nil, err
		}
	}
	list, err := sh.lines("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	packages := affected(files, list, hasGo)
	fmt.Printf("fast: %d of %d packages, those that changed and their direct importers; left out: the tests of all others, and the stages %s\n",
		len(packages), len(list), strings.Join(omittedByFast(), ", "))
	if len(packages) == 0 {
		packages = []string{"./tools/arch"} // its test reads the plan
	}
	return packages, nil
}

// omittedByFast returns the stages of the default gate that -fast leaves out.
func omittedByFast() (names []string) {
	for _, s := range stages() {
		if s.when == landing {
			names = append(names, s.name)
		}
	}
	return names
}

// affected returns the packages of the given files, and their importers, as patterns of the
// go command. list has a line for each package: its import path, and the imports of it and
// its tests. A file belongs to the nearest directory above it that has Go files.
func affected(files, list []string, hasGo func(dir string) bool) []string {
	changed := map[string]bool{}
	for _, file := range files {
		if file == "go.mod" || file == "go.sum" {
			return []string{"./..."}
		}
		dir := path.Dir(file)
		for dir != "." && !hasGo(dir) {
			dir = path.Dir(dir)
		}
		changed[module+dir] = true
	}
	var packages []string
	for _, line := range list {
		fields := strings.Fields(line)
		if slices.ContainsFunc(fields, func(p string) bool { return changed[p] }) {
			packages = append(packages, "./"+strings.TrimPrefix(fields[0], module))
		}
	}
	return packages
}

// hasGo reports whether a directory has Go files.
func hasGo(dir string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	return err == nil && len(files) > 0
}

// lines runs a command and returns the lines of its standard output.
func (sh *shell) lines(name string, args ...string) ([]string, error) {
	out, err := sh.output(name, args...)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, sh.out.String())
	}
	return slices.DeleteFunc(strings.Split(out, "\n"), func(s string) bool { return s == "" }), nil
}
