package prose

import (
	"fmt"
	"go/scanner"
	"go/token"
	"strings"
)

// Wording finds phrases that plain technical English avoids in the comments and string
// literals of a Go file.
func Wording(src []byte) (found []Finding) {
	for _, t := range passages(src) {
		for _, p := range phrases {
			for _, at := range p.match.FindAllStringIndex(t.text, -1) {
				words := strings.Join(strings.Fields(t.text[at[0]:at[1]]), " ")
				if p.except != nil && p.except.MatchString(words) {
					continue
				}
				line := t.line + strings.Count(t.text[:at[0]], "\n")
				found = append(found, Finding{line, fmt.Sprintf("%q: write %s", words, p.instead)})
			}
		}
	}
	return found
}

// A passage is a comment of one or more lines, or a string literal.
type passage struct {
	line int
	text string
}

// passages returns the comments and string literals of a Go file. Consecutive line
// comments are one passage, so that a phrase may continue on the next line.
func passages(src []byte) (list []passage) {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, src, nil, scanner.ScanComments)
	last := 0 // line of the previous comment, if it was a line comment
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return list
		}
		line := file.Line(pos)
		text, isLine := strings.CutPrefix(lit, "//")
		switch {
		case tok == token.COMMENT && isLine && last == line-1 && last > 0:
			list[len(list)-1].text += "\n" + strings.TrimSpace(text)
			last = line
		case tok == token.COMMENT:
			last = 0
			if isLine {
				last = line
			}
			list = append(list, passage{line, strings.TrimSpace(text)})
		case tok == token.STRING:
			list = append(list, passage{line, strings.Trim(lit, "\"`")})
			last = 0
		case tok != token.SEMICOLON || lit != "\n":
			last = 0
		}
	}
}
