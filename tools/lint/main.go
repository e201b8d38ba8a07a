// Command lint is a vet tool that runs the analyzers of staticcheck and
// errcheck:
//
//	go build -o lint ./tools/lint && go vet -vettool=./lint ./...
//
// With go vet, the results are kept in the go command's build cache for each package, so
// that a package is analyzed again only if it or its imports changed.
package main

import (
	"go/token"
	"slices"

	"github.com/kisielk/errcheck/errcheck"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() { unitchecker.Main(analyzers()...) }

// analyzers returns the default analyzers of staticcheck, and errcheck.
func analyzers() []*analysis.Analyzer {
	list := []*analysis.Analyzer{droppedError, unusedCode}
	for _, group := range [][]*lint.Analyzer{simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers} {
		for _, a := range group {
			if !a.Doc.NonDefault {
				list = append(list, a.Analyzer)
			}
		}
	}
	return list
}

// mayDrop are the functions whose errors may be dropped, in addition to errcheck's own
// list.
var mayDrop = []string{
	"fmt.Fprint", "fmt.Fprintf", "fmt.Fprintln",
	"(*strings.Builder).WriteByte",
	"(hash.Hash).Write",
}

// droppedError reports the findings of errcheck, except for the functions of mayDrop.
var droppedError = &analysis.Analyzer{
	Name:     "droppederror",
	Doc:      "report errors that are dropped (errcheck)",
	Requires: []*analysis.Analyzer{errcheck.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, e := range pass.ResultOf[errcheck.Analyzer].(errcheck.Result).UncheckedErrors {
			if !slices.Contains(mayDrop, e.FuncName) && !slices.Contains(mayDrop, e.SelectorName) {
				pass.Reportf(position(pass, e.Pos), "%s returns an error that is dropped (errcheck)", e.FuncName)
			}
		}
		return nil, nil
	},
}

// unusedCode reports the results of staticcheck's analyzer of unused code. go vet analyzes
// a package together with its tests, so code used only by tests counts as used.
var unusedCode = &analysis.Analyzer{
	Name:     "unusedcode",
	Doc:      "report unused code (U1000)",
	Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, o := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			pass.Reportf(position(pass, o.Position), "%s %s is unused (U1000)", o.Kind, o.Name)
		}
		return nil, nil
	},
}

// position returns the position p in the files of the pass; if p is in none of them, the
// package clause of the first file.
func position(pass *analysis.Pass, p token.Position) token.Pos {
	for _, f := range pass.Files {
		if file := pass.Fset.File(f.FileStart); file.Name() == p.Filename && p.Offset <= file.Size() {
			return file.Pos(p.Offset)
		}
	}
	return pass.Files[0].Package
}
