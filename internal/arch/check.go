package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Package is one package of the module as the tree has it.
type Package struct {
	Name    string   // as in Line
	Imports []string // of its code without tests: names as in Line, import paths for what is not the module's
}

// Check compares the packages with the plan, and says in one sentence each
// where they differ. The order of the findings is that of pkgs, then of the plan.
func (p *Plan) Check(pkgs []Package) []string {
	var found []string
	exists := map[string]bool{}
	for _, pkg := range pkgs {
		exists[pkg.Name] = true
	}
	for _, pkg := range pkgs {
		line, ok := p.find(pkg.Name)
		switch {
		case !ok:
			found = append(found, fmt.Sprintf("%s has no line in ARCHITECTURE.md", pkg.Name))
			continue
		case line.Kind == Planned:
			found = append(found, fmt.Sprintf("%s exists: move its line in ARCHITECTURE.md from planned to its kind", pkg.Name))
			continue
		}
		for _, name := range pkg.Imports {
			if why := p.forbids(line, name, exists); why != "" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", pkg.Name, name, why))
			}
		}
	}
	for _, line := range p.Lines {
		if line.Kind != Planned && !exists[line.Name] {
			found = append(found, fmt.Sprintf("%s has a line in ARCHITECTURE.md (%d) but does not exist", line.Name, line.Number))
		}
	}
	return found
}

// forbids says why a package may not import another, or "" if it may.
func (p *Plan) forbids(from Line, name string, exists map[string]bool) string {
	if !exists[name] {
		if from.Pure && doesIO(name) {
			return fmt.Sprintf("%s packages are pure, and this one does I/O, logs or waits", from.Kind)
		}
		return ""
	}
	to, ok := p.find(name)
	switch {
	case !ok || to.Kind == Planned:
		return "" // the package's own finding says it
	case isTest(name) && !isTest(from.Name):
		return "it is for tests only"
	case isBelow(from.Name, name):
		return ""
	case isBelow(name, from.Name):
		return "a parent never imports its child"
	case from.Pure && !to.Pure:
		return "a pure package imports pure packages only"
	case to.Kind == Words && from.Kind == Words && to.Number > from.Number:
		return "words import the words above them only"
	case to.Kind == Words, p.lists(from.Name, name), to.Kind < from.Kind:
		return ""
	case to.Kind == App && from.Kind == App:
		return "app packages never import each other"
	case to.Kind == from.Kind:
		return `packages of one kind import each other only where the line says so after "<"`
	}
	return fmt.Sprintf("%v may not import %v", from.Kind, to.Kind)
}

// lists says whether the line of a package, or of a parent, names an import.
func (p *Plan) lists(from, name string) bool {
	return slices.ContainsFunc(p.Lines, func(l Line) bool {
		return (l.Name == from || isBelow(from, l.Name)) && slices.Contains(l.Imports, name)
	})
}

// isBelow says whether child stands below parent in the tree.
func isBelow(child, parent string) bool { return strings.HasPrefix(child, parent+"/") }

// isTest says whether a package is for tests only, which its name ends with.
func isTest(name string) bool {
	base := path.Base(name)
	return strings.HasSuffix(base, "test") && base != "test"
}

// outside lists the import paths that reach outside the process, or wait.
var outside = []string{"os", "net", "log", "syscall", "context", "plugin", "io/ioutil", "database/sql", "runtime/debug", "golang.org/x/sys", "github.com/cilium/ebpf"}

func doesIO(importPath string) bool { return hasPrefix(importPath, outside) }

// hasPrefix says whether an import path is one of prefixes or below one.
func hasPrefix(importPath string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return importPath == p || isBelow(importPath, p) })
}

// CheckLinked compares what a rule's program links with the rule. The paths
// are those of the packages that it depends on, without the standard library.
func (r Rule) CheckLinked(paths []string) []string {
	var found []string
	for _, p := range paths {
		if in := hasPrefix(p, r.Prefixes); in != r.Only {
			found = append(found, fmt.Sprintf("%s links %s, which line %d of ARCHITECTURE.md rules out", r.Program, p, r.Number))
		}
	}
	return found
}
