package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
)

// impure lists what a pure package may not use of packages that it may import: clocks,
// waiting, the terminal.
var impure = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// Impure parses one Go file and returns one sentence for each violation of purity: reading
// a clock, waiting, printing, starting a goroutine. Check handles imports. The error is the
// parser's.
func Impure(file string, src []byte) ([]string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // names in the file to import paths
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
