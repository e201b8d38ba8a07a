package chart

import (
	"regexp"
	"strconv"
	"strings"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// errorPosition matches Prometheus's position of an error in a query.
var errorPosition = regexp.MustCompile(`(?:^|[ "])(\d+):(\d+): parse error: `)

// MarkError marks the position of a server's error message in a query: it returns the
// query's line with a caret below the position, and the message without the position. It
// returns false if the message has no position in the query.
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
	// Columns count bytes; a tab is as wide as its replacement.
	clean := func(s string) string { return text.Clean(strings.ReplaceAll(s, "\t", " ")) }
	shown, before := clean(lines[line-1]), clean(lines[line-1][:column-1])
	return shown + "\n" + strings.Repeat(" ", top.Width(before)) + "^", complaint[m[1]:], true
}
