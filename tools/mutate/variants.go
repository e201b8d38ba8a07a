package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// To build tests for each mutant takes longer than to run them. So they are built once, with all
// mutants: a mutant is a changed copy of the function in which it lies, and the function calls
// the copy if the name of the program ends in the number of the mutant. Mutants outside of functions, and
// those in functions that cannot be copied, are built one by one.

// chooser is a file that is added to the changed package. Child processes that run the same program have
// the same mutant, whatever their arguments and environment are.
const chooser = `package %s

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

var mutateVariant = func() int {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Ext(path), ".v"))
	return n
}()
`

// A drawn mutant and its package.
type drawn struct {
	*target
	*mutant
}

// combine numbers mutants, and writes the overlay with which their packages have all of them.
func (b *bench) combine(all []drawn) error {
	mutants := map[*target]map[string][]*mutant{} // by file
	for i, d := range all {
		if mutants[d.target] == nil {
			mutants[d.target] = map[string][]*mutant{}
		}
		d.variant = i + 1
		mutants[d.target][d.mutant.path] = append(mutants[d.target][d.mutant.path], d.mutant)
	}
	changed := map[string][]byte{}
	build := []string{"build"}
	for t, files := range mutants {
		for path, list := range files {
			source, err := withVariants(t.sources[path], list)
			if err != nil {
				return err
			}
			changed[path] = source
			changed[filepath.Join(filepath.Dir(path), "mutate_variant.go")] = fmt.Appendf(nil, chooser, t.name)
		}
	}
	overlay, err := b.overlay("variants", changed)
	if err != nil {
		return err
	}
	build = append(build, "-overlay", overlay)
	for t := range mutants {
		build = append(build, t.path)
	}
	if _, err := b.run("go", build...); err == nil {
		b.variants = overlay
		return nil
	}
	for _, d := range all {
		d.variant = 0
	}
	return b.ctx.Err()
}

// withVariants returns a file with a changed copy of a function for each mutant. It sets the number
// of those to 0 that it leaves out.
func withVariants(source []byte, mutants []*mutant) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	e := &edits{source: source, fset: fset}
	var copies bytes.Buffer
	missing := slices.Clone(mutants)
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Name.Name == "_" || callsRecover(f.Body) {
			continue
		}
		name, begin, end := e.offset(f.Name.Pos()), e.offset(f.Body.Lbrace), e.offset(f.Body.Rbrace)
		within := func(m *mutant) bool { return begin < m.start && m.end <= end }
		if !slices.ContainsFunc(mutants, within) {
			continue
		}
		c := newCaller(f, e)
		cases := "\nswitch mutateVariant {\n"
		for _, m := range mutants {
			if !within(m) {
				continue
			}
			variant := fmt.Sprintf("mutate%d%s", m.variant, f.Name.Name)
			cases += fmt.Sprintf("case %d: %s\n", m.variant, c.call(variant))
			fmt.Fprintf(&copies, "\n%s%s%s%s%s\n", source[e.offset(f.Type.Func):name], variant, source[name+len(f.Name.Name):m.start], m.text, source[m.end:end+1])
			missing = slices.DeleteFunc(missing, func(o *mutant) bool { return o == m })
		}
		e.replace(f.Body.Lbrace+1, f.Body.Lbrace+1, cases+"}\n")
	}
	for _, m := range missing {
		m.variant = 0
	}
	return append(e.apply(), copies.Bytes()...), nil
}

// callsRecover reports whether a function calls recover, which works only in the deferred function itself.
func callsRecover(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == "recover"
		return !found
	})
	return found
}

// A caller is what a call of a function's copy needs.
type caller struct {
	receiver, types, args string
	returns               bool
}

// newCaller gives names to parameters that have none.
func newCaller(f *ast.FuncDecl, e *edits) caller {
	n := 0
	names := func(list *ast.FieldList) string {
		var all []string
		if list == nil {
			return ""
		}
		for _, field := range list.List {
			if len(field.Names) == 0 {
				n++
				all = append(all, fmt.Sprintf("mutateArg%d", n))
				e.replace(field.Type.Pos(), field.Type.Pos(), all[len(all)-1]+" ")
			}
			for _, id := range field.Names {
				name := id.Name
				if name == "_" {
					n++
					name = fmt.Sprintf("mutateArg%d", n)
					e.replace(id.Pos(), id.End(), name)
				}
				all = append(all, name)
			}
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				all[len(all)-1] += "..."
			}
		}
		return strings.Join(all, ", ")
	}
	c := caller{returns: f.Type.Results.NumFields() > 0}
	if f.Recv != nil {
		c.receiver = names(f.Recv) + "."
	}
	if f.Type.TypeParams != nil {
		c.types = "[" + names(f.Type.TypeParams) + "]"
	}
	c.args = names(f.Type.Params)
	return c
}

// call returns the statement that calls a copy in place of the function.
func (c caller) call(name string) string {
	call := c.receiver + name + c.types + "(" + c.args + ")"
	if c.returns {
		return "return " + call
	}
	return call + "; return"
}

// edits are changes of a text.
type edits struct {
	fset   *token.FileSet
	source []byte
	all    []edit
}

type edit struct {
	start, end int
	text       string
}

func (e *edits) offset(p token.Pos) int { return e.fset.Position(p).Offset }

func (e *edits) replace(from, to token.Pos, text string) {
	e.all = append(e.all, edit{e.offset(from), e.offset(to), text})
}

// apply returns the changed text.
func (e *edits) apply() []byte {
	slices.SortFunc(e.all, func(a, b edit) int { return a.start - b.start })
	var out []byte
	at := 0
	for _, edit := range e.all {
		out = append(append(out, e.source[at:edit.start]...), edit.text...)
		at = edit.end
	}
	return append(out, e.source[at:]...)
}
