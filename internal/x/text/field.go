package text

import (
	"strconv"
	"strings"
	"unicode"
)

// Field returns a field of CSV that is safe in a spreadsheet and on a terminal: control
// characters and changes of writing direction are replaced, and a text that a spreadsheet would
// take for a formula begins with an apostrophe. Numbers stay.
func Field(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	if s == "" || !strings.ContainsRune("=+-@", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Fields returns a row of CSV with each field made safe by Field.
func Fields(row []string) []string {
	safe := make([]string, len(row))
	for i, s := range row {
		safe[i] = Field(s)
	}
	return safe
}
