package v1

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// The words for the forms of an answer.
const (
	FormJSON = "json"
	FormCSV  = "csv"
)

// ParseForm reads in which form an answer is wanted: "" where that is not said.
func ParseForm(given map[string][]string) (string, error) {
	return ParseWord(given, ParamFormat, []string{FormJSON, FormCSV})
}

// A Part says which part of a list is wanted. Its zero value is all of it.
type Part struct {
	limit int
	after string // key of the element before
	from  bool   // there is one
}

// ParsePart reads which part of a list is wanted: at most so many, from where the
// page before ended.
func ParsePart(given map[string][]string) (p Part, err error) {
	if p.limit, err = parseLimit(given); err != nil {
		return p, err
	}
	s, err := single(given, ParamCursor, "")
	if err != nil || given[ParamCursor] == nil {
		return p, err
	}
	key, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(key) == 0 {
		return p, invalid("give it as it came in next_cursor, or leave it out", "parameter %s=%q", ParamCursor, s)
	}
	p.after, p.from = string(key), true
	return p, nil
}

// Whole says whether all of the list is wanted.
func (p Part) Whole() bool { return p.limit == 0 && !p.from }

// Of returns the part of a list, and the cursor of the next page: "" where there
// is none. A part is of the list in the order of its keys, of which no two are the
// same; what comes or goes meanwhile moves nothing else to another page. A whole
// list stays in the order that it has.
func Of[T any](p Part, list []T, key func(*T) string) (page []T, next string) {
	if p.Whole() {
		return list, ""
	}
	type keyed struct {
		key string
		at  int
	}
	all := make([]keyed, 0, len(list))
	for i := range list {
		if k := key(&list[i]); !p.from || k > p.after {
			all = append(all, keyed{k, i})
		}
	}
	slices.SortFunc(all, func(a, b keyed) int { return strings.Compare(a.key, b.key) })
	if p.limit > 0 && len(all) > p.limit {
		all = all[:p.limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(all[p.limit-1].key))
	}
	page = make([]T, 0, len(all))
	for _, k := range all {
		page = append(page, list[k.at])
	}
	return page, next
}

// Key makes one key of several texts, by which things have the order of the first,
// then of the second.
func Key(texts ...string) string { return strings.Join(texts, "\x00") }

// Falling is a text by which later moments, in ns since 1970, come first.
func Falling(ns int64) string {
	s := strconv.FormatUint(^(uint64(ns) ^ 1<<63), 16)
	return strings.Repeat("0", 16-len(s)) + s
}
