package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// To build tests for each change of the code takes longer than to run them. So they are built once, with
// all changes: a change is a copy of each function that it changes, and the function calls the copy
// if the name of the program ends in the number of the change. Changes outside of functions, and
// those of functions that cannot be copied, are built one by one.

// chooser is a file that is added to a changed package. Child processes that run the same program have
// the same change, whatever their arguments and environment are.
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

// withVariant returns the name of a program that runs with the change of a number.
func withVariant(name string, number int) string { return fmt.Sprintf("%s.v%d", name, number) }

// A change is some files with their changed text, by path.
type change map[string][]byte

// combine writes an overlay with as many changes as it can hold, and returns the number of each; 0 is
// one that has to be built alone.
func (b *bench) combine(all []change) (overlay string, numbers []int, err error) {
	numbers = make([]int, len(all))
	files := map[string]*variants{}
	for i, c := range all {
		numbers[i] = i + 1
		found := map[string][]difference{}
		for path, source := range c {
			if files[path] == nil {
				if files[path], err = newVariants(path); err != nil {
					return "", nil, err
				}
			}
			if found[path] = files[path].differences(source); found[path] == nil {
				numbers[i] = 0
			}
		}
		for path, differences := range found {
			if numbers[i] > 0 {
				files[path].add(numbers[i], differences)
			}
		}
	}
	combined := change{}
	build := []string{"build", "-overlay", ""}
	for path, v := range files {
		if len(v.cases) == 0 {
			continue
		}
		dir := filepath.Dir(path)
		combined[path], combined[filepath.Join(dir, "mutate_variant.go")] = v.merged(), fmt.Appendf(nil, chooser, v.file.Name.Name)
		if !slices.Contains(build, dir) {
			build = append(build, dir)
		}
	}
	if build[2], err = b.overlay("variants", combined); err != nil {
		return "", nil, err
	}
	if _, err := b.run("go", build...); err != nil { // by a rule that only the compiler has
		return "", make([]int, len(all)), b.ctx.Err()
	}
	return build[2], numbers, nil
}

// variants is a file of a package with copies of its functions.
type variants struct {
	source    []byte
	fset      *token.FileSet
	file      *ast.File // nil: it has no functions that can be copied
	functions []*ast.FuncDecl
	cases     map[int]string // of the switch in a function
	copies    []byte
}

func newVariants(path string) (*variants, error) {
	source, err := os.ReadFile(path)
	v := &variants{source: source, fset: token.NewFileSet(), cases: map[int]string{}}
	if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
		v.file, v.functions, err = v.parse(source)
	}
	return v, err
}

// parse returns the functions of a file that have a body.
func (v *variants) parse(source []byte) (*ast.File, []*ast.FuncDecl, error) {
	file, err := parser.ParseFile(v.fset, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	var functions []*ast.FuncDecl
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			functions = append(functions, f)
		}
	}
	return file, functions, nil
}

// A difference is a function whose body differs.
type difference struct {
	function int
	text     []byte // of the changed function, behind its name
}

// differences returns what differs in a changed file, or nil if it is not only functions that can be copied.
func (v *variants) differences(source []byte) []difference {
	if v.file == nil {
		return nil
	}
	_, changed, err := v.parse(source)
	if err != nil || len(changed) != len(v.functions) {
		return nil
	}
	var all []difference
	at, changedAt := 0, 0 // the ends of the last bodies
	for i, f := range v.functions {
		g := changed[i]
		begin, end, changedBegin, changedEnd := v.offset(f.Body.Lbrace), v.offset(f.Body.End()), v.offset(g.Body.Lbrace), v.offset(g.Body.End())
		if !bytes.Equal(v.source[at:begin], source[changedAt:changedBegin]) {
			return nil
		}
		if !bytes.Equal(v.source[begin:end], source[changedBegin:changedEnd]) {
			if f.Name.Name == "_" || callsRecover(f.Body) || callsRecover(g.Body) {
				return nil
			}
			all = append(all, difference{i, source[v.offset(g.Name.End()):changedEnd]})
		}
		at, changedAt = end, changedEnd
	}
	if !bytes.Equal(v.source[at:], source[changedAt:]) {
		return nil
	}
	return all
}

func (v *variants) offset(p token.Pos) int { return v.fset.Position(p).Offset }

// callsRecover reports whether a function calls recover, which works only in the deferred function itself.
func callsRecover(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == "recover"
		return !found
	})
	return found
}

// add adds the copies of a change.
func (v *variants) add(number int, all []difference) {
	for _, d := range all {
		f := v.functions[d.function]
		name := fmt.Sprintf("mutate%d%s", number, f.Name.Name)
		v.cases[d.function] += fmt.Sprintf("case %d: %s\n", number, call(f, name))
		v.copies = fmt.Appendf(v.copies, "\n%s%s%s\n", v.source[v.offset(f.Type.Func):v.offset(f.Name.Pos())], name, d.text)
	}
}

// call returns the statement that calls a copy in place of the function.
func call(f *ast.FuncDecl, name string) string {
	s := name
	if t := f.Type.TypeParams; t != nil {
		s += "[" + strings.Join(names(t, ""), ", ") + "]"
	}
	s += "(" + strings.Join(names(f.Type.Params, parameter), ", ") + ")"
	if f.Recv != nil {
		s = names(f.Recv, receiver)[0] + "." + s
	}
	if f.Type.Results.NumFields() > 0 {
		return "return " + s
	}
	return s + "; return"
}

// Names of receivers and parameters that have none, before their number.
const receiver, parameter = "mutateReceiver", "mutateParameter"

// names returns the names of receivers or parameters as they are passed on.
func names(list *ast.FieldList, prefix string) (all []string) {
	for _, field := range list.List {
		for i := range max(1, len(field.Names)) {
			name := fmt.Sprint(prefix, len(all))
			if len(field.Names) > 0 && field.Names[i].Name != "_" {
				name = field.Names[i].Name
			}
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				name += "..."
			}
			all = append(all, name)
		}
	}
	return all
}

// merged returns the file with all copies.
func (v *variants) merged() []byte {
	var out []byte
	at := 0
	insert := func(p token.Pos, skip int, text string) {
		out = append(append(out, v.source[at:v.offset(p)]...), text...)
		at = v.offset(p) + skip
	}
	for i, f := range v.functions {
		if v.cases[i] == "" {
			continue
		}
		for _, l := range []struct {
			*ast.FieldList
			prefix string
		}{{f.Recv, receiver}, {f.Type.Params, parameter}} {
			if l.FieldList == nil {
				continue
			}
			n := 0
			for _, field := range l.List {
				for _, id := range field.Names {
					if id.Name == "_" {
						insert(id.Pos(), 1, fmt.Sprint(l.prefix, n))
					}
					n++
				}
				if len(field.Names) == 0 {
					insert(field.Type.Pos(), 0, fmt.Sprint(l.prefix, n, " "))
					n++
				}
			}
		}
		insert(f.Body.Lbrace+1, 0, "\nswitch mutateVariant {\n"+v.cases[i]+"}\n")
	}
	return slices.Concat(out, v.source[at:], v.copies)
}
