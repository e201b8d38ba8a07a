package text

import "strings"

// Cut returns at most n bytes of a text, without a part of a character at the end.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
