package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// The kinds of mistakes.
const (
	kindNegated   = "negated condition"
	kindRemoved   = "removed statement"
	kindOffByOne  = "off by one"
	kindSwapped   = "swapped operands"
	kindNoError   = "dropped error"
	maxShownChars = 100
)

// A mutant is one change of one file: the bytes from start to end become text.
type mutant struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Kind   string `json:"kind"`
	Before string `json:"before"`
	After  string `json:"after"`

	path       string // absolute
	start, end int
	text       string

	variant int // its number in programs that have many; 0: none has it
}

// String returns place, kind and change in one line.
func (m *mutant) String() string {
	after := m.After
	if after == "" {
		after = "(nothing)"
	}
	return fmt.Sprintf("%s:%d: %s: %s -> %s", m.File, m.Line, m.Kind, m.Before, after)
}

// apply returns the file with the change.
func (m *mutant) apply(source []byte) []byte {
	return slices.Concat(source[:m.start], []byte(m.text), source[m.end:])
}

// A finder finds all mutants of a file.
type finder struct {
	fset   *token.FileSet
	info   *types.Info
	source []byte
	path   string // absolute
	name   string // as it is shown

	mutants    []*mutant
	statements int
	skipped    map[ast.Node]bool
}

// find walks the file. It leaves out what only people read: log lines, texts of errors and
// panics, and methods that describe a value. It also leaves out capacities, which change the cost of
// code but not its results, and failpoints, which do nothing outside of tests.
func (f *finder) find(file *ast.File) {
	f.skipped = map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if f.skipped[n] {
			return false
		}
		if s, ok := n.(ast.Stmt); ok && !isBlock(s) {
			f.statements++
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Recv == nil || !slices.Contains([]string{"String", "GoString", "Error"}, n.Name.Name)
		case *ast.GenDecl:
			return n.Tok != token.IMPORT && !usesIota(n) // the values of an enumeration are names
		case *ast.BlockStmt:
			f.removeStatements(n.List)
		case *ast.CommClause:
			f.removeStatements(n.Body)
		case *ast.CaseClause:
			f.removeStatements(n.Body)
			for _, c := range n.List {
				if v, ok := f.info.Types[c]; ok && isBoolean(v.Type) {
					f.negate(c)
				}
			}
		case *ast.IfStmt:
			f.negate(n.Cond)
			if f.comparesError(n.Cond) && len(n.Body.List) > 0 {
				f.add(kindNoError, n.Body.Pos(), n.Body.End(), "{}")
			}
		case *ast.ForStmt:
			f.negate(n.Cond)
		case *ast.ReturnStmt:
			f.dropError(n)
		case *ast.CallExpr:
			if c := f.capacity(n); c != nil {
				f.skipped[c] = true
			}
			return !f.isForPeople(n)
		case *ast.BinaryExpr:
			f.changeOperation(n)
		case *ast.BasicLit:
			f.changeConstant(n)
		}
		return true
	})
}

// add adds a mutant that replaces the code from one place to another.
func (f *finder) add(kind string, from, to token.Pos, text string) {
	start := f.fset.Position(from)
	m := &mutant{File: f.name, Line: start.Line, Kind: kind, path: f.path, start: start.Offset, end: f.fset.Position(to).Offset, text: text}
	m.Before, m.After = oneLine(string(f.source[m.start:m.end])), oneLine(text)
	f.mutants = append(f.mutants, m)
}

func (f *finder) code(n ast.Node) string {
	return string(f.source[f.fset.Position(n.Pos()).Offset:f.fset.Position(n.End()).Offset])
}

// oneLine returns the beginning of a piece of code, in one line.
func oneLine(code string) string {
	code = strings.Join(strings.Fields(code), " ")
	if r := []rune(code); len(r) > maxShownChars {
		return string(r[:maxShownChars]) + "..."
	}
	return code
}

// isBlock reports whether a statement only holds others.
func isBlock(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.LabeledStmt, *ast.EmptyStmt:
		return true
	}
	return false
}

func usesIota(d *ast.GenDecl) (found bool) {
	ast.Inspect(d, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && d.Tok == token.CONST && id.Name == "iota"
		return !found
	})
	return found
}

func isBoolean(t types.Type) bool { return isBasic(t, types.IsBoolean) }

func isBasic(t types.Type, want types.BasicInfo) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&want != 0
}

func isError(t types.Type) bool {
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}

// comparesError reports whether a condition is err != nil, for any error.
func (f *finder) comparesError(cond ast.Expr) bool {
	b, ok := cond.(*ast.BinaryExpr)
	return ok && b.Op == token.NEQ && f.info.Types[b.Y].IsNil() && isError(f.info.TypeOf(b.X))
}

// isForPeople reports whether a call logs, makes the text of an error or a panic, or marks a failpoint.
func (f *finder) isForPeople(c *ast.CallExpr) bool {
	var id *ast.Ident
	switch fun := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return false
	}
	switch o := f.info.Uses[id].(type) {
	case *types.Builtin:
		return o.Name() == "panic"
	case *types.Func:
		if o.Pkg() == nil {
			return false
		}
		switch path := o.Pkg().Path(); {
		case path == "log", path == "log/slog", strings.HasSuffix(path, "/x/failpoint"):
			return true
		default:
			return path+"."+o.Name() == "fmt.Errorf" || path+"."+o.Name() == "errors.New"
		}
	}
	return false
}

// capacity returns the argument of a call that says for how much there is to be room, or nil.
func (f *finder) capacity(c *ast.CallExpr) ast.Expr {
	last := len(c.Args) - 1
	switch fun := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		if b, ok := f.info.Uses[fun].(*types.Builtin); !ok || b.Name() != "make" || last < 1 {
			return nil
		}
		if _, isMap := f.info.TypeOf(c.Args[0]).Underlying().(*types.Map); isMap || last == 2 {
			return c.Args[last]
		}
	case *ast.SelectorExpr:
		if o, ok := f.info.Uses[fun.Sel].(*types.Func); ok && o.Name() == "Grow" && o.Pkg() != nil && slices.Contains([]string{"slices", "strings", "bytes"}, o.Pkg().Path()) {
			return c.Args[last]
		}
	}
	return nil
}

// isRoom reports whether a statement only makes room: b.Grow(n), or x = slices.Grow(x, n).
func (f *finder) isRoom(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		c, ok := s.X.(*ast.CallExpr)
		return ok && f.capacity(c) != nil
	case *ast.AssignStmt:
		if len(s.Rhs) != 1 || len(s.Lhs) != 1 {
			return false
		}
		c, ok := s.Rhs[0].(*ast.CallExpr)
		return ok && len(c.Args) == 2 && f.capacity(c) == c.Args[1] && f.code(s.Lhs[0]) == f.code(c.Args[0])
	}
	return false
}

// negate adds the negation of a condition.
func (f *finder) negate(cond ast.Expr) {
	if cond != nil {
		f.add(kindNegated, cond.Pos(), cond.End(), "!("+f.code(cond)+")")
	}
}

// removeStatements adds a mutant without each statement that computes, jumps or calls.
// Declarations stay, because code without them seldom compiles.
func (f *finder) removeStatements(list []ast.Stmt) {
	for _, s := range list {
		if f.isRoom(s) {
			continue
		}
		switch s := s.(type) {
		case *ast.ExprStmt:
			if c, ok := s.X.(*ast.CallExpr); ok && f.isForPeople(c) {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.BranchStmt:
		default:
			continue
		}
		f.add(kindRemoved, s.Pos(), s.End(), "")
	}
}

// dropError adds a return of nil in place of an error.
func (f *finder) dropError(r *ast.ReturnStmt) {
	if len(r.Results) == 0 {
		return
	}
	last := r.Results[len(r.Results)-1]
	if v := f.info.Types[last]; isError(v.Type) && !v.IsNil() {
		f.add(kindNoError, last.Pos(), last.End(), "nil")
	}
}

// changeOperation adds a comparison that includes or excludes equal integers, and the operation
// with its operands swapped.
func (f *finder) changeOperation(b *ast.BinaryExpr) {
	other := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}[b.Op]
	if other == "" && b.Op != token.SUB && b.Op != token.QUO {
		return
	}
	x, y := f.code(b.X), f.code(b.Y)
	if t := f.info.TypeOf(b.X); other != "" && t != nil && isBasic(t, types.IsInteger) {
		f.add(kindOffByOne, b.Pos(), b.End(), x+" "+other+" "+y)
	}
	if x != y {
		f.add(kindSwapped, b.Pos(), b.End(), "("+y+") "+b.Op.String()+" ("+x+")")
	}
}

// changeConstant adds the next larger integer.
func (f *finder) changeConstant(l *ast.BasicLit) {
	if l.Kind != token.INT {
		return
	}
	v := constant.BinaryOp(constant.MakeFromLiteral(l.Value, l.Kind, 0), token.ADD, constant.MakeInt64(1))
	f.add(kindOffByOne, l.Pos(), l.End(), v.ExactString())
}

// generated reports whether a program wrote a file.
func generated(source []byte, file *ast.File) bool {
	return bytes.Contains(source, []byte("DO NOT EDIT")) && ast.IsGenerated(file)
}
