package api

import (
	"fmt"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// maxQueryBytes is how many bytes a query may have: what is nested is walked by calling.
	maxQueryBytes = 64 << 10
	// maxOperators is how many operators and brackets it may have: reading them takes time by
	// the second power of it, and cannot be stopped.
	maxOperators = 2000
	// maxDepth is how many expressions may be in each other: what writes one out takes
	// time by the third power of it.
	maxDepth = 500
	// maxLabelText is how many bytes a text may have that becomes a value of labels, and
	// most how many times as long as they were a query may make them.
	maxLabelText   = 1 << 10
	maxLabelGrowth = 64
)

// checkOperators reports a text that would take long to read as a query.
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

// checkGrowth reports a query that is too deep, or makes values of labels many times as long as they were,
// again and again: they are in memory, and no limit counts them. The error names the
// place in text.
func checkGrowth(n parser.Node, text string) error {
	_, err := labelGrowth(n, text, 0)
	return err
}

// labelGrowth is how many times as long as they are in the database a value of a label in
// what n gives can be.
func labelGrowth(n parser.Node, text string, depth int) (int, error) {
	wrong := func(format string, args ...any) error {
		return &parser.ParseErr{PositionRange: n.PositionRange(), Query: text, Err: fmt.Errorf(format, args...)}
	}
	if depth > maxDepth {
		return 0, wrong("expressions are more than %d deep in each other", maxDepth)
	}
	times := 1
	for c := range parser.ChildrenIter(n) {
		of, err := labelGrowth(c, text, depth+1)
		if err != nil {
			return 0, err
		}
		times = max(times, of)
	}
	call, ok := n.(*parser.Call)
	if !ok || call.Func.Name != "label_replace" && call.Func.Name != "label_join" {
		return times, nil
	}
	for _, a := range call.Args[1:] {
		if s, ok := literal(a); ok && len(s) > maxLabelText {
			return 0, wrong("%s writes a text of %d bytes into labels: at most %d", call.Func.Name, len(s), maxLabelText)
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
		return 0, wrong("%s may make labels %d times as long: at most %d times", call.Func.Name, times, maxLabelGrowth)
	}
	return times, nil
}

// literal is the text that n is, if it is one.
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
