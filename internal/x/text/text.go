// Package text makes text from outside safe to print on a terminal and to write as CSV.
package text

import (
	"strings"
	"unicode"
)

// maxMarks is how many combining marks one character may carry: the most that a living
// script stacks. More marks would paint over other lines.
const maxMarks = 2

// Clean makes text from outside harmless on a terminal: it replaces control and format
// characters (escape sequences, newlines, changes of writing direction) and invalid UTF-8
// by the replacement character, and limits combining marks.
func Clean(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			ascii = false
			break
		}
	}
	if ascii {
		return s
	}
	marks := maxMarks // a mark without a base character is removed
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0xfe00 && r <= 0xfe0f:
			return -1 // terminals disagree on the width of variation selectors
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
