package chart

import (
	"regexp"
	"strconv"
	"strings"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// errorPosition is how Prometheus says where in a query something is wrong.
var errorPosition = regexp.MustCompile(`(?:^|[ "])(\d+):(\d+): parse error: `)

// MarkError shows in a query what a server complains of: its line with a caret below
// the place, and the complaint without the place's numbers. It is false where the
// complaint names no place in the query.
func MarkError(query, complaint string) (words, about string, ok bool) {
	m := errorPosition.FindStringSubmatchIndex(complaint)
	if m == nil {
		return "", "", false
	}
	line, err := strconv.Atoi(complaint[m[2]:m[3]])
	if err != nil {
		return "", "", false
	}
	column, err := strconv.Atoi(complaint[m[4]:m[5]])
	lines := strings.Split(query, "\n")
	if err != nil || line < 1 || line > len(lines) || column < 1 || column > len(lines[line-1])+1 {
		return "", "", false
	}
	// Columns count bytes; a tab takes as many cells as its replacement.
	clean := func(s string) string { return text.Clean(strings.ReplaceAll(s, "\t", " ")) }
	shown, before := clean(lines[line-1]), clean(lines[line-1][:column-1])
	return shown + "\n" + strings.Repeat(" ", top.Width(before)) + "^", complaint[m[1]:], true
}
