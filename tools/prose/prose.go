// Package prose checks the spelling of all text, and the wording of comments and string
// literals of Go files.
//
// It does no I/O: its test reads the tree.
package prose

import (
	"fmt"
	"regexp"
	"strings"
)

// british are beginnings of words in British spelling.
var british = regexp.MustCompile(`(?i:enrol)(?:[^l]|$)|(?i)(?:behaviour|colour|neighbour|favour|honour|cancelled|labelled|signalled|travelled|recognis|initialis|normalis|summaris|organis|serialis|synchronis|authoris|minimis(?:e|ing)|maximis(?:e|ing)|optimis(?:e|ing|ation)|prioritis|analys(?:e[ds]?\b|ing)|\bgrey|judgement|artefact|catalogue|\bcentred?\b|licence(?:[^:]|$)|fulfils|per cent\b)`)

// kept are words of stored data and of other programs, whose spelling is fixed.
var kept = regexp.MustCompile(`\bCANCELLED\b|node\.enrol\b|enrol\.denied|cancelled_write_bytes|ErrRefusedNotAuthorised`)

// A Finding is a place whose words break a rule.
type Finding struct {
	Line int // from 1
	Why  string
}

// Spelling finds words in British spelling. Parts of identifiers count too.
func Spelling(text string) (found []Finding) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		for _, word := range british.FindAllString(kept.ReplaceAllString(line, ""), -1) {
			found = append(found, Finding{number, fmt.Sprintf("%q is British spelling; American is used", word)})
		}
	}
	return found
}
