package main

//go:generate go test . -run=^TestDocument$ -count=1 -update

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// module is the module's path.
const module = "mete.dev/mete/"

// A stagedTest is a test of a stage of its own: it calls testkit.Stage, directly or
// indirectly.
type stagedTest struct {
	dir, name  string // ./internal/x, TestX
	stage, why string
}

// A function is the node of one function in the search for staged tests. Methods are
// matched by name only, and an identifier with the name of a function counts as that
// function.
type function struct {
	uses   []string // keys of other functions
	stages []stagedTest
}

// stagedTests finds the staged tests below root. It follows references between functions,
// within and across the module's packages, from each test to the calls of testkit.Stage; a
// reference counts as a call. It does not follow methods of other packages.
func stagedTests(root string) ([]stagedTest, error) {
	functions := map[string]*function{}
	fset := token.NewFileSet()
	err := files(root, ".go", func(file string) error {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		if dir == "internal/testkit" {
			return nil // tests Stage itself
		}
		f, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			return err
		}
		return collect(functions, fset, f, dir, strings.HasSuffix(file, "_test.go"))
	})
	if err != nil {
		return nil, err
	}
	var tests []stagedTest
	for key := range functions {
		dir, name, _ := strings.Cut(key, " ")
		dir, ok := strings.CutSuffix(dir, inTests)
		if !ok || !regexp.MustCompile(`^Test($|[^a-z])`).MatchString(name) {
			continue
		}
		for _, s := range reached(functions, key, map[string]bool{}) {
			s.dir, s.name = "./"+dir, name
			if !slices.ContainsFunc(tests, func(t stagedTest) bool { return t.dir == s.dir && t.name == s.name && t.stage == s.stage }) {
				tests = append(tests, s)
			}
		}
	}
	slices.SortFunc(tests, func(a, b stagedTest) int {
		return strings.Compare(a.stage+" "+a.dir+" "+a.name, b.stage+" "+b.dir+" "+b.name)
	})
	return tests, nil
}

// files calls visit for the files below root with the given ending, except those that the
// go command ignores.
func files(root, end string, visit func(file string) error) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, end):
			return nil
		}
		return visit(file)
	})
}

// inTests ends the directory in the keys of functions of test files, which only test files
// of the same directory can use.
const inTests = "_test"

// collect adds the functions of a file under the keys "dir name", and its methods
// under "dir .name".
func collect(functions map[string]*function, fset *token.FileSet, f *ast.File, dir string, test bool) error {
	imports := map[string]string{} // name in the file to directory in the module
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if folder, ok := strings.CutPrefix(p, module); ok {
			name := path.Base(p)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imports[name] = folder
		}
	}
	for _, d := range f.Decls {
		decl, ok := d.(*ast.FuncDecl)
		if !ok || decl.Body == nil {
			continue
		}
		key := dir
		if test {
			key += inTests
		}
		key += " "
		if decl.Recv != nil {
			key += "."
		}
		key += decl.Name.Name
		if functions[key] == nil {
			functions[key] = &function{}
		}
		fn := functions[key]
		uses := func(name string) {
			fn.uses = append(fn.uses, dir+" "+name)
			if test {
				fn.uses = append(fn.uses, dir+inTests+" "+name)
			}
		}
		var failed error
		ast.Inspect(decl.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Stage" && ident(sel.X) == "testkit" {
					s, err := stageCall(n)
					if err != nil {
						failed = fmt.Errorf("%s: %w", fset.Position(n.Pos()), err)
					}
					fn.stages = append(fn.stages, s)
					return false
				}
			case *ast.SelectorExpr:
				if folder, ok := imports[ident(n.X)]; ok {
					fn.uses = append(fn.uses, folder+" "+n.Sel.Name)
					return false
				}
				uses("." + n.Sel.Name)
			case *ast.Ident:
				if n.Obj == nil || n.Obj.Kind == ast.Fun { // not a variable of this file
					uses(n.Name)
				}
			}
			return true
		})
		if failed != nil {
			return failed
		}
	}
	return nil
}

func ident(e ast.Expr) string {
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// stageCall reads the constants of a call of testkit.Stage.
func stageCall(call *ast.CallExpr) (s stagedTest, err error) {
	if len(call.Args) != 3 {
		return s, fmt.Errorf("testkit.Stage has %d arguments, want 3", len(call.Args))
	}
	for i, to := range []*string{&s.stage, &s.why} {
		lit, ok := call.Args[i+1].(*ast.BasicLit)
		if !ok {
			return s, fmt.Errorf("argument %d of testkit.Stage is not a string constant, as docs/testing.md needs", i+2)
		}
		if *to, err = strconv.Unquote(lit.Value); err != nil {
			return s, err
		}
	}
	return s, nil
}

// reached returns the stages that a function calls, directly or indirectly.
func reached(functions map[string]*function, key string, seen map[string]bool) (stages []stagedTest) {
	fn := functions[key]
	if fn == nil || seen[key] {
		return nil
	}
	seen[key] = true
	stages = append(stages, fn.stages...)
	for _, use := range fn.uses {
		stages = append(stages, reached(functions, use, seen)...)
	}
	return stages
}

// only returns the tests of one stage as a pattern for go test -run, and their packages.
func only(tests []stagedTest, stage string) (pattern string, packages []string) {
	var names []string
	for _, t := range tests {
		if t.stage == stage {
			names = append(names, t.name)
			packages = append(packages, t.dir)
		}
	}
	slices.Sort(names)
	slices.Sort(packages)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$", slices.Compact(packages)
}

// packagesOf finds the test functions of each package with a prefix, a regular expression,
// in files that contain a text.
func packagesOf(prefix, text string) (map[string][]string, error) {
	declared := regexp.MustCompile(`(?m)^func (` + prefix + `\w*)\(`)
	packages := map[string][]string{}
	err := files(".", "_test.go", func(path string) error {
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(src), text) {
			return nil
		}
		for _, m := range declared.FindAllSubmatch(src, -1) {
			dir := "./" + filepath.Dir(path)
			packages[dir] = append(packages[dir], string(m[1]))
		}
		return nil
	})
	return packages, err
}

func sorted(packages map[string][]string) []string {
	var dirs []string
	for dir := range packages {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs
}
