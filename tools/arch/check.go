package arch

import (
	"fmt"
	"slices"
	"strings"
)

// A Package is one package of the module in the tree.
type Package struct {
	Name    string   // as in Line
	Imports []string // without tests: names as in Line, import paths for other modules
}

// Check compares the packages with the plan, and returns one sentence for each difference,
// in the order of pkgs, then of the plan.
func (p *Plan) Check(pkgs []Package) []string {
	var found []string
	exists := map[string]bool{}
	for _, pkg := range pkgs {
		exists[pkg.Name] = true
	}
	for _, pkg := range pkgs {
		line, ok := p.find(pkg.Name)
		if !ok {
			found = append(found, fmt.Sprintf("%s has no line in ARCHITECTURE.md", pkg.Name))
			continue
		}
		for _, name := range pkg.Imports {
			if why := p.forbids(line, name, exists); why != "" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", pkg.Name, name, why))
			}
		}
	}
	for _, line := range p.Lines {
		if !exists[line.Name] {
			found = append(found, fmt.Sprintf("%s has a line in ARCHITECTURE.md (%d) but does not exist", line.Name, line.Number))
		}
	}
	return found
}

// forbids returns why a package may not import another, or "".
func (p *Plan) forbids(from Line, name string, exists map[string]bool) string {
	for _, l := range p.Limits {
		if hasPrefix(name, []string{l.Prefix}) && !hasPrefix(from.Name, append(l.Allowed, l.Prefix)) {
			return fmt.Sprintf("line %d allows it within %s only", l.Number, strings.Join(l.Allowed, ", "))
		}
	}
	if !exists[name] {
		if from.Pure && doesIO(name) {
			return "a pure package does no I/O, logs nothing and does not wait"
		}
		return ""
	}
	to, ok := p.find(name)
	switch {
	case !ok:
		return "" // the package has a finding of its own
	case from.Pure && !to.Pure:
		return "a pure package imports pure packages only"
	case to.Room < from.Room, isBelow(name, from.Name), p.lists(from.Name, name):
		return ""
	case to.Room > from.Room:
		return fmt.Sprintf("the room %s is below the room %s", p.Rooms[to.Room-1], p.Rooms[from.Room-1])
	case isBelow(from.Name, name):
		return "a child never imports its parent"
	}
	return `packages of one room import each other only where the line says so after "<"`
}

// lists reports whether the line of a package, or of a parent, lists an import.
func (p *Plan) lists(from, name string) bool {
	return slices.ContainsFunc(p.Lines, func(l Line) bool {
		return (l.Name == from || isBelow(from, l.Name)) && slices.Contains(l.Imports, name)
	})
}

// isBelow reports whether child is below parent in the tree.
func isBelow(child, parent string) bool { return strings.HasPrefix(child, parent+"/") }

// outside lists the import paths that do I/O, or wait.
var outside = []string{"os", "net", "log", "syscall", "context", "plugin", "io/ioutil", "database/sql", "runtime/debug", "golang.org/x/sys", "github.com/cilium/ebpf"}

// doesIO reports whether an import path does. net/netip has the types of addresses only.
func doesIO(importPath string) bool {
	return importPath != "net/netip" && hasPrefix(importPath, outside)
}

// hasPrefix reports whether a path is one of prefixes or below one.
func hasPrefix(importPath string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return importPath == p || isBelow(importPath, p) })
}

// CheckLinked checks the packages that a rule's package links. paths are the import paths
// of its dependencies without the standard library.
func (r Rule) CheckLinked(paths []string) []string {
	var found []string
	for _, p := range paths {
		if in := hasPrefix(p, r.Prefixes); in != r.Only {
			found = append(found, fmt.Sprintf("%s links %s, which line %d of ARCHITECTURE.md rules out", r.Package, p, r.Number))
		}
	}
	return found
}
