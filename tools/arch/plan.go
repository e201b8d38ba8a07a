// Package arch reads the import plan of ARCHITECTURE.md and finds where the code violates
// it.
//
// It does no I/O: its test reads the tree.
package arch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Line is the plan's line of one package.
type Line struct {
	Name string // below internal/, or from the root for cmd/ and tools/
	Room int    // the number of its heading, from 1; a package imports from rooms of lower numbers
	Pure bool
	// Imports are the packages of its own room that it and its children may import.
	Imports []string
	Owns    string // its purpose
	Number  int    // in ARCHITECTURE.md, from 1
}

// A Rule limits what a package links, directly or indirectly.
type Rule struct {
	Package string
	// Only inverts the rule: the package may link nothing else but the standard library.
	Only     bool
	Prefixes []string // of import paths, matching whole elements
	Number   int      // line in ARCHITECTURE.md
}

// A Limit names the only packages that may import something.
type Limit struct {
	Prefix  string   // of import paths, or a package of the plan and the packages below it
	Allowed []string // packages of the plan, and the packages below them
	Number  int      // line in ARCHITECTURE.md
}

// A Plan is the whole import plan.
type Plan struct {
	Rooms  []string // in order
	Lines  []Line   // in order
	Rules  []Rule
	Limits []Limit
}

// Parse parses the plan from the text of ARCHITECTURE.md: the block fenced by ```arch. The
// error wraps one error with its line number for each malformed line.
//
// A heading "# ROOM | purpose" opens a room. A line below it is "NAMES * < IMPORTS |
// purpose": several packages may share a line, "*" means pure, and imports are packages of
// the same room on earlier lines. Other lines are "never PACKAGE: PREFIXES", "only PACKAGE:
// PREFIXES" and "within PACKAGES: PREFIX".
func Parse(markdown string) (Plan, error) {
	var (
		plan   Plan
		errs   []error
		inside bool
		found  bool
	)
	number := 0
	for text := range strings.Lines(markdown) {
		number++
		text = strings.TrimSpace(text)
		switch {
		case !inside:
			inside = text == "```arch"
			found = found || inside
			continue
		case text == "```":
			inside = false
			continue
		case text == "":
			continue
		}
		if err := plan.parseLine(text, number); err != nil {
			errs = append(errs, fmt.Errorf("ARCHITECTURE.md:%d: %w", number, err))
		}
	}
	if !found {
		errs = append(errs, errors.New("ARCHITECTURE.md: no block ```arch"))
	}
	return plan, errors.Join(errs...)
}

func (p *Plan) parseLine(text string, number int) error {
	if heading, ok := strings.CutPrefix(text, "# "); ok {
		room, _, _ := strings.Cut(heading, "|")
		room = strings.TrimSpace(room)
		if room == "" || strings.ContainsAny(room, " /") {
			return fmt.Errorf("heading %q wants the form %q", heading, "# ROOM | purpose")
		}
		if slices.Contains(p.Rooms, room) {
			return fmt.Errorf("room %s has a heading already", room)
		}
		p.Rooms = append(p.Rooms, room)
		return nil
	}
	first, rest, _ := strings.Cut(text, " ")
	switch first {
	case "never", "only", "within":
		names, prefixes, ok := strings.Cut(rest, ":")
		list := strings.Fields(prefixes)
		if !ok || len(list) == 0 || strings.TrimSpace(names) == "" {
			return fmt.Errorf("%q wants the form %q", text, first+" PACKAGE: PREFIXES")
		}
		if first != "within" {
			p.Rules = append(p.Rules, Rule{Package: strings.TrimSpace(names), Only: first == "only", Prefixes: list, Number: number})
			return nil
		}
		for _, prefix := range list {
			p.Limits = append(p.Limits, Limit{Prefix: prefix, Allowed: strings.Fields(names), Number: number})
		}
		return nil
	}
	if len(p.Rooms) == 0 {
		return fmt.Errorf("%q precedes all headings", first)
	}
	return p.parsePackages(text, number)
}

func (p *Plan) parsePackages(text string, number int) error {
	spec, owns, _ := strings.Cut(text, "|")
	names, imports, _ := strings.Cut(spec, "<")
	line := Line{Room: len(p.Rooms), Imports: strings.Fields(imports), Owns: strings.TrimSpace(owns), Number: number}
	fields := strings.Fields(names)
	if n := len(fields); n > 0 && fields[n-1] == "*" {
		line.Pure, fields = true, fields[:n-1]
	}
	if len(fields) == 0 {
		return errors.New("a line without a package")
	}
	room := p.Rooms[line.Room-1]
	for _, name := range line.Imports {
		above, ok := p.find(name)
		switch {
		case !ok:
			return fmt.Errorf("%s < %s: only packages of earlier lines can be listed", fields[0], name)
		case above.Room != line.Room:
			return fmt.Errorf("%s < %s: packages of earlier rooms are not listed", fields[0], name)
		}
	}
	for _, name := range fields {
		if before, ok := p.find(name); ok {
			return fmt.Errorf("%s has a line already, %d", name, before.Number)
		}
		if name != room && !isBelow(name, room) {
			return fmt.Errorf("%s is not in the room %s of its heading", name, room)
		}
		line.Name = name
		p.Lines = append(p.Lines, line)
	}
	return nil
}

// find returns the line of a package.
func (p *Plan) find(name string) (Line, bool) {
	i := slices.IndexFunc(p.Lines, func(l Line) bool { return l.Name == name })
	if i < 0 {
		return Line{}, false
	}
	return p.Lines[i], true
}

// IsPure reports whether the plan marks the package as pure.
func (p *Plan) IsPure(name string) bool {
	line, ok := p.find(name)
	return ok && line.Pure
}
