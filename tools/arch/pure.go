package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
)

// impure lists what a pure package may not name of packages that it may
// otherwise import: clocks, waiting, the terminal.
var impure = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// Impure reads one Go file and says in one sentence each where a pure package
// may not do what it does: read a clock, wait, print, start a goroutine.
// Imports are left to Check. The error is the parser's.
func Impure(file string, src []byte) ([]string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // as the file calls them, to import paths
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil || impure[path] == nil {
			continue
		}
		name := path
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
	}
	var found []string
	say := func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s: a pure package %s", fset.Position(n.Pos()), what))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n, "starts a goroutine")
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && slices.Contains(impure[names[x.Name]], n.Sel.Name) {
				say(n, "uses "+names[x.Name]+"."+n.Sel.Name)
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				say(n, "prints")
			}
		}
		return true
	})
	return found, nil
}
