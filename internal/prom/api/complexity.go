package api

import (
	"fmt"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// maxQueryBytes limits the text of a query, because nested expressions are walked recursively.
	maxQueryBytes = 64 << 10
	// maxOperators limits the operators and brackets of a query: parsing takes quadratic time
	// in their number and cannot be interrupted.
	maxOperators = 2000
	// maxDepth limits the nesting of expressions: formatting takes cubic time in the depth.
	maxDepth = 500
	// maxLabelText limits a string literal that becomes a label value, in bytes;
	// maxLabelGrowth limits the factor by which a query may lengthen label values.
	maxLabelText   = 1 << 10
	maxLabelGrowth = 64
)

// checkOperators rejects a query with more than maxOperators operators and brackets.
func checkOperators(text string) error {
	l, n := parser.Lex(text), 0
	for {
		var item parser.Item
		l.NextItem(&item)
		switch t := item.Typ; {
		case t == parser.EOF, t == parser.ERROR:
			return nil
		case t.IsOperator(), t == parser.LEFT_PAREN, t == parser.LEFT_BRACKET:
			n++
		}
		if n > maxOperators {
			return &parser.ParseErr{PositionRange: item.PositionRange(), Query: text, Err: fmt.Errorf("more than %d operators and brackets", maxOperators)}
		}
	}
}

// checkGrowth rejects a query that is nested too deeply or lengthens label values too much:
// label values are in memory, and no other limit counts them. The error names the position in text.
func checkGrowth(n parser.Node, text string) error {
	_, err := labelGrowth(n, text, 0)
	return err
}

// labelGrowth returns the factor by which the label values in the result of n can be longer
// than those in the database.
func labelGrowth(n parser.Node, text string, depth int) (int, error) {
	wrong := func(format string, args ...any) error {
		return &parser.ParseErr{PositionRange: n.PositionRange(), Query: text, Err: fmt.Errorf(format, args...)}
	}
	if depth > maxDepth {
		return 0, wrong("expressions are more than %d levels deep", maxDepth)
	}
	times := 1
	for c := range parser.ChildrenIter(n) {
		child, err := labelGrowth(c, text, depth+1)
		if err != nil {
			return 0, err
		}
		times = max(times, child)
	}
	call, ok := n.(*parser.Call)
	if !ok || call.Func.Name != "label_replace" && call.Func.Name != "label_join" {
		return times, nil
	}
	for _, a := range call.Args[1:] {
		if s, ok := literal(a); ok && len(s) > maxLabelText {
			return 0, wrong("%s writes a string of %d bytes into labels: at most %d", call.Func.Name, len(s), maxLabelText)
		}
	}
	switch {
	case call.Func.Name == "label_join":
		times *= max(1, len(call.Args)-3)
	case len(call.Args) > 2:
		s, _ := literal(call.Args[2])
		times *= max(1, strings.Count(s, "$"))
	}
	if times > maxLabelGrowth {
		return 0, wrong("%s may make label values %d times as long: at most %d times", call.Func.Name, times, maxLabelGrowth)
	}
	return times, nil
}

// literal returns the value of n if it is a string literal.
func literal(n parser.Node) (string, bool) {
	switch n := n.(type) {
	case *parser.StringLiteral:
		return n.Val, true
	case *parser.ParenExpr:
		return literal(n.Expr)
	case *parser.StepInvariantExpr:
		return literal(n.Expr)
	}
	return "", false
}
