// Package text makes text from outside safe to print on a terminal.
package text

import (
	"strings"
	"unicode"
)

// maxMarks is how many combining marks one character may carry: the most that
// any living script stacks. More of them would paint over other lines.
const maxMarks = 2

// Clean makes text from outside harmless on a terminal: control and format
// characters (escape sequences, new lines, changes of writing direction) become
// a replacement character each, bad UTF-8 too, and piles of combining marks are
// cut down.
func Clean(s string) string {
	plain := true
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	marks := maxMarks // a mark needs something to stand on
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0xfe00 && r <= 0xfe0f:
			return -1 // variation selectors change widths that nobody agrees on
		case unicode.In(r, unicode.Mn, unicode.Me):
			if marks++; marks > maxMarks {
				return -1
			}
			return r
		case !unicode.IsGraphic(r) || r != ' ' && unicode.IsSpace(r) || unicode.In(r, unicode.Co):
			marks = maxMarks
			return unicode.ReplacementChar
		}
		marks = 0
		return r
	}, s)
}
