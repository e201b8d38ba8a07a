// Package arch reads the import plan of ARCHITECTURE.md and finds where the
// code departs from it.
//
// It is pure: its test reads the tree and hands it over.
package arch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Kind says what a package may do; a package imports packages of lower kinds.
type Kind uint8

// The kinds, in the order of the plan's headings.
const (
	Unknown  Kind = iota
	Words         // the domain's nouns
	Thought       // rules and formulas, pure
	Hands         // I/O
	App           // wiring
	Programs      // main packages
	Planned       // not there yet: held to nothing
)

var kindNames = [...]string{"unknown", "words", "thought", "hands", "app", "programs", "planned"}

// String returns the kind's heading.
func (k Kind) String() string { return kindNames[min(int(k), len(kindNames)-1)] }

// A Line is what the plan says of one package.
type Line struct {
	Name string // below internal/, or from the root for cmd/ and tools/
	Kind Kind
	Pure bool
	// Imports are the packages of its own kind that it and its children may import.
	Imports []string
	Owns    string // what it is for
	Number  int    // in ARCHITECTURE.md, from 1
}

// A Rule limits what a program links, all the way down.
type Rule struct {
	Program string
	// Only turns the rule around: nothing else may be linked, the standard
	// library apart.
	Only     bool
	Prefixes []string // of import paths, at element borders
	Number   int      // line in ARCHITECTURE.md
}

// A Plan is the whole import plan.
type Plan struct {
	Lines []Line // in their order
	Rules []Rule
}

// Parse reads the plan from the text of ARCHITECTURE.md: the block fenced by
// ```arch. An error wraps one error for each malformed line, which names it by
// number.
//
// A line is "names * < imports | what it owns", where several names may share
// a line, "*" stands for pure, and a heading "# words" gives the kind of what
// follows. Further lines are "never PROGRAM: PREFIXES" and "only PROGRAM:
// PREFIXES".
func Parse(markdown string) (Plan, error) {
	var (
		plan   Plan
		kind   Kind
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
		if err := plan.parseLine(text, number, &kind); err != nil {
			errs = append(errs, fmt.Errorf("ARCHITECTURE.md:%d: %w", number, err))
		}
	}
	if !found {
		errs = append(errs, errors.New("ARCHITECTURE.md: no block ```arch"))
	}
	return plan, errors.Join(errs...)
}

func (p *Plan) parseLine(text string, number int, kind *Kind) error {
	if heading, ok := strings.CutPrefix(text, "# "); ok {
		k := slices.Index(kindNames[:], heading)
		if k <= int(*kind) {
			return fmt.Errorf("heading %q is none of %v, or out of their order", heading, kindNames[1:])
		}
		*kind = Kind(k)
		return nil
	}
	first, rest, _ := strings.Cut(text, " ")
	if first == "never" || first == "only" {
		program, prefixes, ok := strings.Cut(rest, ":")
		if !ok || strings.TrimSpace(prefixes) == "" {
			return fmt.Errorf("%q wants the form %q", text, first+" PROGRAM: PREFIXES")
		}
		p.Rules = append(p.Rules, Rule{
			Program: strings.TrimSpace(program), Only: first == "only", Prefixes: strings.Fields(prefixes), Number: number,
		})
		return nil
	}
	if *kind == Unknown {
		return fmt.Errorf("%q stands before any heading", first)
	}
	return p.parsePackages(text, number, *kind)
}

func (p *Plan) parsePackages(text string, number int, kind Kind) error {
	spec, owns, _ := strings.Cut(text, "|")
	names, imports, _ := strings.Cut(spec, "<")
	line := Line{Kind: kind, Imports: strings.Fields(imports), Owns: strings.TrimSpace(owns), Number: number}
	fields := strings.Fields(names)
	if n := len(fields); n > 0 && fields[n-1] == "*" {
		line.Pure, fields = true, fields[:n-1]
	}
	if len(fields) == 0 {
		return errors.New("a line without a package")
	}
	if (kind == Words || kind == Thought) && !line.Pure {
		return fmt.Errorf("%s: what stands under %v is pure: write %q", fields[0], kind, "*")
	}
	for _, name := range line.Imports {
		above, ok := p.find(name)
		switch {
		case kind == Planned:
		case !ok:
			return fmt.Errorf("%s < %s: only a line above can be named", fields[0], name)
		case kind == App && above.Kind == App:
			return fmt.Errorf("%s < %s: app packages never import each other", fields[0], name)
		case above.Kind > kind:
			return fmt.Errorf("%s < %s: %v may not import %v", fields[0], name, kind, above.Kind)
		}
	}
	for _, name := range fields {
		if before, ok := p.find(name); ok {
			return fmt.Errorf("%s has a line already, %d", name, before.Number)
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

// IsPure says whether the plan has a package that it calls pure.
func (p *Plan) IsPure(name string) bool {
	line, ok := p.find(name)
	return ok && line.Pure && line.Kind != Planned
}
